"""Host memory: aligned, seen as bytes, cut into messages."""

from collections.abc import Iterator

import numpy as np

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
MESSAGE_BYTES = 1 << 30  # counts of many MPIs are 32-bit; 1 GiB stays well inside


def aligned_zeros(count: int, dtype) -> np.ndarray:
    """``count`` zeros whose first byte lies on a cache line."""
    nbytes = count * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes].view(dtype)


def as_bytes(span):
    """A contiguous span of any type, as unsigned bytes over the same memory."""
    return span.reshape(-1).view(np.uint8)


def cut(nbytes: int, limit: int = MESSAGE_BYTES) -> Iterator[tuple[int, int]]:
    """(start, stop) of the messages that carry ``nbytes``: each ``limit`` long but the last. None for no
    bytes."""
    for start in range(0, nbytes, limit):
        yield start, min(start + limit, nbytes)
