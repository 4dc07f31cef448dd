"""The page-locked host memory: the memory that a device copies by itself, and whose copies may be recorded."""

import weakref

import numpy as np


class PinnedMemory:
    """The known page-locked arrays."""

    def __init__(self):
        self._ends = {}  # by first address

    def add(self, memory: np.ndarray) -> None:
        """Add ``memory``, which stays known as long as it, or a view of it, lives."""
        start = memory.ctypes.data
        self._ends[start] = start + memory.nbytes
        weakref.finalize(memory, self._ends.pop, start, None)

    def holds(self, host: np.ndarray) -> bool:
        start = host.ctypes.data
        end = start + host.nbytes
        return any(first <= start and end <= last for first, last in list(self._ends.items()))
