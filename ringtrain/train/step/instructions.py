"""An iteration as a list of instructions.

The list is data: accumulation and pipelines are other lists, not other loops. ``doing`` names the work for people.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Bring micro-batch ``micro`` of this rank's share to the device."""

    doing = "loading a batch"
    micro: int


@dataclass(frozen=True, slots=True)
class Forward:
    doing = "forward"
    micro: int


@dataclass(frozen=True, slots=True)
class ReduceLoss:
    """Start summing loss and flags over the ranks, while backward runs."""

    doing = "starting the sum of losses"


@dataclass(frozen=True, slots=True)
class Backward:
    """``last``: gradients are final then, and the exchange gets each span."""

    doing = "backward"
    micro: int
    last: bool


@dataclass(frozen=True, slots=True)
class NoExamples:
    """Give the exchange a gradient of zeros: this rank has no example in a tail. If ranks meet in layers, it runs an
    empty micro-batch instead."""

    doing = "backward"


@dataclass(frozen=True, slots=True)
class CheckLoss:
    """Wait for the loss of the global batch that is ``window`` batches old; end the run if it is not finite, before it
    spoils the weights."""

    doing = "waiting for the sum of losses"


@dataclass(frozen=True, slots=True)
class Replay:
    """Run passes and update of a rank that has no others, as one recording."""

    doing = "an iteration"


@dataclass(frozen=True, slots=True)
class CheckEarlierLoss:
    """Wait for the loss of the iteration before, while the device does this one; end the run if it is not finite. The
    device leaves out updates after such a loss."""

    doing = "waiting for the loss"


@dataclass(frozen=True, slots=True)
class CheckOwnLoss:
    """Read the loss of this rank's part, and end the run if it is not finite."""

    doing = "learning the loss"


@dataclass(frozen=True, slots=True)
class Update:
    """Complete the exchange and apply the update."""

    doing = "the update"


REPLAYED = (Replay(), ReduceLoss(), CheckEarlierLoss())
WITHOUT_EXAMPLES = (ReduceLoss(), NoExamples(), CheckLoss(), Update())


def instructions(micro_batches: int) -> tuple:
    """An iteration of a rank whose part has this number of micro-batches."""
    if micro_batches == 0:
        return WITHOUT_EXAMPLES
    last = micro_batches - 1
    work: list = []
    for micro in range(last):
        work += [Load(micro), Forward(micro), Backward(micro, last=False)]
    return (*work, Load(last), Forward(last), ReduceLoss(), Backward(last, last=True), CheckLoss(), Update())


def independent(micro_batches: int) -> tuple:
    """An iteration of a rank that waits for no other: it checks its own loss."""
    swap: dict = {ReduceLoss(): (), CheckLoss(): (CheckOwnLoss(),)}
    return tuple(each for one in instructions(micro_batches) for each in swap.get(one, (one,)))
