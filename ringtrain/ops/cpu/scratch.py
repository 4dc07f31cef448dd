"""Scratch memory of operations, kept by name and reused."""

import numpy as np

ALIGNMENT = 64


class Scratch:
    """Flat arrays that only grow: after the first call for a shape nothing is allocated."""

    def __init__(self):
        self._held: dict = {}

    def __call__(self, name: str, count: int, dtype):
        """Return at least ``count`` uninitialised elements that belong to this name."""
        key = (name, dtype)
        held = self._held.get(key)
        if held is None or held.size < count:
            held = self._held[key] = aligned((count,), dtype)
        return held


def aligned(shape, dtype):
    """Return an uninitialised array that starts on a cache line, for wide vector loads."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def address(x) -> int:
    """Return the address of the first element."""
    return x.ctypes.data
