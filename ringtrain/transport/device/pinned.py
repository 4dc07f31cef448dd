"""A pool of page-locked host memory.

The driver takes about a millisecond to lock pages, for any number of pages: arrays are cut from large allocations.
"""

from collections.abc import Callable

import numpy as np

from ringtrain.transport.buffers import ALIGNMENT

BLOCK_BYTES = 8 << 20


class Pinned:
    """The pool. ``allocate(nbytes)`` returns a uint8 array of page-locked memory. Returned arrays are kept for the next
    request of their size.
    """

    def __init__(self, allocate: Callable[[int], np.ndarray], block_bytes: int = BLOCK_BYTES):
        self._allocate, self._block_bytes = allocate, block_bytes
        self._rest = np.zeros(0, np.uint8)  # of the newest block
        self._spare: dict[int, list[np.ndarray]] = {}
        self.nbytes = 0  # locked so far

    def take(self, nbytes: int) -> np.ndarray:
        """Return a uint8 array on a cache line of its own."""
        spare = self._spare.get(nbytes)
        return spare.pop() if spare else self._cut(nbytes)

    def give(self, array: np.ndarray) -> None:
        self._spare.setdefault(array.size, []).append(array)

    def _cut(self, nbytes: int) -> np.ndarray:
        padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if self._rest.size < padded:
            size = max(padded, self._block_bytes)
            self._rest = self._allocate(size)
            self.nbytes += size
        array, self._rest = self._rest[:nbytes], self._rest[padded:]
        return array
