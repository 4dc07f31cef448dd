"""The all-reduce step on a slice of the memory of several ranks: ``sources/exchange.cu``."""

from ringtrain.ops.cuda.device import Device

MOST = 8


def add_all(device: Device, sources, targets):
    """Types of 16 bits are added in float32 and rounded once.

    Raises: ValueError for no source or target, or more than 8 of either.
    """
    for name, arrays in (("sources", sources), ("targets", targets)):
        if not 1 <= len(arrays) <= MOST:
            raise ValueError(f"add_all got {len(arrays)} {name}; it takes 1 to {MOST}")
    count, dtype = sources[0].size, sources[0].dtype
    kernel = device.kernels.of(dtype)("exchange", "add_all")
    arguments = *_filled(sources), *_filled(targets), len(sources), len(targets), count
    device.each(kernel, count, *arguments, per_thread=16 // dtype.itemsize)


def _filled(arrays):
    """Return as many arrays as the kernel has parameters; the rest are null."""
    return *arrays, *[None] * (MOST - len(arrays))
