"""Memory that operations need for themselves, kept by name and used again."""

import numpy as np

ALIGNMENT = 64


class Scratch:
    """Flat arrays that only ever grow: after the first call for a shape nothing is allocated."""

    def __init__(self):
        self._held: dict = {}

    def __call__(self, name: str, count: int, dtype):
        """At least ``count`` elements, of any content, that stay this name's own."""
        key = (name, dtype)
        held = self._held.get(key)
        if held is None or held.size < count:
            held = self._held[key] = aligned((count,), dtype)
        return held


def aligned(shape, dtype):
    """An uninitialised array that starts on a cache line, as wide vector loads like it."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def address(x) -> int:
    return x.ctypes.data
