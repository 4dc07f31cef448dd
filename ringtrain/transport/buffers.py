"""Memory for messages: aligned arrays, views as bytes, bounds of messages, and bytes known only by their address."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
MESSAGE_BYTES = 1 << 30  # counts of many MPIs are 32-bit; 1 GiB stays well inside


def aligned_zeros(count: int, dtype: DTypeLike) -> np.ndarray:
    """Return ``count`` zeros whose first byte lies on a cache line."""
    nbytes = count * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes].view(dtype)


@dataclass(frozen=True, slots=True)
class Raw:
    """``size`` bytes at an address that an MPI may use and this process may not: memory of a device. ``owner`` keeps it
    alive.
    """

    address: int
    size: int
    owner: object

    def __getitem__(self, index: slice) -> "Raw":
        start, stop, _ = index.indices(self.size)
        return Raw(self.address + start, stop - start, self.owner)


def as_bytes(span: Array | Raw) -> Any:
    """Return a contiguous span of any type as unsigned bytes over the same memory."""
    return span if isinstance(span, Raw) else np.asarray(span).reshape(-1).view(np.uint8)


def message_bounds(nbytes: int, limit: int = MESSAGE_BYTES) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the messages that carry ``nbytes``: each has ``limit`` bytes except the last. Yields none
    for 0 bytes.
    """
    for start in range(0, nbytes, limit):
        yield start, min(start + limit, nbytes)
