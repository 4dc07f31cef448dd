"""What ranks send for fully connected layers: as columns that are divided among them, and as gradients of all weights.

Elements a rank sends in an iteration, of layers of K1, K2 … KL columns behind D features, batch B, p ranks::

    divided     (p-1)/p · B · (2·D + 2·K1 + … + 2·K(L-1) + 2·KL/p)
    gradients   (p-1)/p · 2 · parameters

Features are gathered and their gradients scattered; so are the columns of each layer but the last: there each rank
takes those of its own examples alone, and gives back their gradients. Features without a gradient (images) count once.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014, where the last layer's
columns are gathered by all: KL in place of 2·KL/p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.exchange import texts


@dataclass(frozen=True, slots=True)
class Cost:
    """features:   D
    units:      columns of each layer, in order
    parameters: of all of them
    learning:   whether anything is learnt before them, so that features have a gradient
    """

    features: int
    units: Sequence[int]
    parameters: int
    learning: bool = True

    def divided(self, batch: int, ranks: int) -> float:
        features = (1 + self.learning) * self.features
        each = features + 2 * sum(self.units[:-1]) + 2 * self.units[-1] / ranks
        return (ranks - 1) / ranks * batch * each

    def gradients(self, ranks: int) -> float:
        return 2 * (ranks - 1) / ranks * self.parameters

    def words(self, batch: int, ranks: int) -> str:
        """The saving, for people."""
        if ranks == 1:
            return texts.HYBRID_ONE_RANK
        here, there = self.divided(batch, ranks), self.gradients(ranks)
        sends = texts.HYBRID_SENDS(numbers=_count(here), others=_count(there))
        if here < there:
            return texts.HYBRID_LESS(sends=sends, share=1 - here / there)
        return texts.HYBRID_MORE(sends=sends)


def _count(elements: float) -> str:
    """ "3.44 million", "12,345" """
    return f"{elements / 1e6:.3g} million" if elements >= 1e6 else f"{elements:,.0f}"
