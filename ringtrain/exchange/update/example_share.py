"""The weight of a rank in an average of weights."""

import numpy as np


class ExampleShare:
    """Counts examples since the last average. ``local``: of this iteration on this rank; ``counts``: this rank's,
    and all ranks'. ``ranks``: without examples all of them have equal shares."""

    def __init__(self, ranks: int = 1) -> None:
        self.local, self.counts, self._equal = 0, np.zeros(2, np.int64), 1 / ranks

    def __bool__(self) -> bool:
        """Whether any rank has seen an example."""
        return bool(self.counts[1] > 0)

    def add(self, local: int, total: int) -> None:
        """Count an iteration of ``total`` examples."""
        self.local = local
        self.counts += local, total

    @property
    def share(self) -> float:
        """This rank's share."""
        return float(self.counts[0] / self.counts[1]) if self else self._equal

    def take(self) -> float:
        """Return this rank's share, and count from 0."""
        share = self.share
        self.reset()
        return share

    def reset(self) -> None:
        """Count from 0."""
        self.counts = np.zeros(2, np.int64)
