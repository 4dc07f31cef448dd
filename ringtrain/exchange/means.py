"""Means over ranks, made in the memory of the gradients, which are not needed between iterations."""

from ringtrain.exchange.flight import Flight


def take_mean(ops, array, share: float, sums: Flight, buffer) -> None:
    """``array`` becomes the mean over ranks, in which this rank weighs ``share``. ``sums`` are those of ``buffer``, as
    long as the array. Collective."""
    ops.copy(array, buffer)
    ops.scale(buffer, share)
    sums.land()
    ops.copy(buffer, array)
