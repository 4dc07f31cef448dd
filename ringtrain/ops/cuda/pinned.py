"""Which host memory is page-locked: what a device copies from and to by itself, and what may be recorded."""

import weakref

import numpy as np


class PinnedMemory:
    def __init__(self):
        self._ends = {}  # by first address

    def add(self, memory: np.ndarray) -> None:
        """``memory`` is kept in mind as long as it, or a view of it, lives."""
        start = memory.ctypes.data
        self._ends[start] = start + memory.nbytes
        weakref.finalize(memory, self._ends.pop, start, None)

    def holds(self, host: np.ndarray) -> bool:
        start = host.ctypes.data
        end = start + host.nbytes
        return any(first <= start and end <= last for first, last in list(self._ends.items()))
