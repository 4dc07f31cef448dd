"""An iteration as a list of instructions.

The list is data: accumulation, recomputation and pipelines are other lists, not other loops. ``doing``: what a rank is
in meanwhile, for people.
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
    """``last``: gradients are final now, and each span is announced to the exchange."""

    doing = "backward"
    micro: int
    last: bool


@dataclass(frozen=True, slots=True)
class NoExamples:
    """This rank has no example in a tail: its gradient is zero, and it takes part all the same. Where ranks meet in
    layers it runs an empty micro-batch instead."""

    doing = "backward"


@dataclass(frozen=True, slots=True)
class CheckLoss:
    """Learn the loss of a global batch, of the one before ``window`` others; end the run where it is not finite, before
    it spoils the weights."""

    doing = "waiting for the sum of losses"


@dataclass(frozen=True, slots=True)
class CheckOwnLoss:
    """Learn the loss of this rank's part, and end the run where it is not finite."""

    doing = "learning the loss"


@dataclass(frozen=True, slots=True)
class Update:
    """Complete the exchange and apply the update."""

    doing = "the update"


def instructions(micro_batches: int) -> tuple:
    """An iteration of a rank whose share is cut into so many micro-batches."""
    if micro_batches == 0:
        return (ReduceLoss(), NoExamples(), CheckLoss(), Update())
    last = micro_batches - 1
    work = []
    for micro in range(last):
        work += [Load(micro), Forward(micro), Backward(micro, last=False)]
    return (*work, Load(last), Forward(last), ReduceLoss(), Backward(last, last=True), CheckLoss(), Update())


def alone(micro_batches: int) -> tuple:
    """The same of a rank that does not wait for the others to learn how they fared."""
    swap = {ReduceLoss(): (), CheckLoss(): (CheckOwnLoss(),)}
    return tuple(each for one in instructions(micro_batches) for each in swap.get(one, (one,)))
