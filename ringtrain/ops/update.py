"""The update of weights by their gradients: the rule, the ranges that it treats alike, and the numbers of one update.

The numbers are in memory of the device, so that a recorded update has new ones each time, and none waits for the host:

    numbers of an update    rate, updates so far, multiplier of gradients, whether applied, whether diverged
    loss scale              the factor of the loss, updates since it changed, updates left out

Formulas: :mod:`ringtrain.optim.optimizers`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

RATE, UPDATES, MULTIPLIER, APPLIED, DIVERGED = range(5)
UPDATE_NUMBERS = 5
FACTOR, GOOD, SKIPPED = range(3)
LOSS_SCALE_NUMBERS = 3

LARGEST_FACTOR = 2.0**24
GROW_AFTER = 2000  # updates in a row

# statistics: trained elements stay as they are.
KINDS = ("sgd", "nesterov", "adamw", "adam", "rmsprop", "lars", "lamb", "statistics")
EMA = "ema"  # the slot of the average of the weights, the last one


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """An optimizer with its constants. ``kind``: one of :data:`KINDS`; the others are as in
    :class:`ringtrain.config.record.OptimizerConfig`."""

    kind: str
    momentum: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    trust_coefficient: float = 1e-3
    ema: float | None = None

    @property
    def layerwise(self) -> bool:
        """Whether norms of whole parameters scale the update."""
        return self.kind in ("lars", "lamb")


@dataclass(frozen=True, slots=True)
class UpdateRange:
    """Elements ``start:stop`` of the arena with one kind of update. lr multiplies the learning rate, decay is
    final, rate is the rate of running statistics, or 0 if the range is trained. norm numbers the one parameter
    whose norms scale its update; None if none does. frozen: only its average is written."""

    start: int
    stop: int
    lr: float
    decay: float
    rate: float
    norm: int | None = None
    frozen: bool = False


def trained_ranges(ranges: Sequence[UpdateRange]) -> Iterator[UpdateRange]:
    """The ranges that are neither frozen nor running statistics."""
    return (each for each in ranges if not each.rate and not each.frozen)
