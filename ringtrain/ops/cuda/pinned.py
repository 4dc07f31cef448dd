"""The page-locked host memory: the memory that a device copies by itself, and whose copies may be recorded."""

import weakref
from bisect import bisect_right, insort

import numpy as np


class PinnedMemory:
    """The known page-locked arrays."""

    def __init__(self):
        self._ends = {}  # by first address
        self._starts = []  # in order

    def add(self, memory: np.ndarray) -> None:
        """Register page-locked memory until its last view dies."""
        start = memory.ctypes.data
        self._ends[start] = start + memory.nbytes
        insort(self._starts, start)
        weakref.finalize(memory, self._forget, start)

    def _forget(self, start: int) -> None:
        self._starts.remove(start)
        del self._ends[start]

    def holds(self, address: int, nbytes: int) -> bool:
        before = bisect_right(self._starts, address)
        return before > 0 and address + nbytes <= self._ends.get(self._starts[before - 1], 0)
