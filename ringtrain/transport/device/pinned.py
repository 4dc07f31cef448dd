"""Page-locked host memory, in pieces that are used again.

The driver takes about a millisecond to lock pages, whatever their number: pieces are cut from large blocks.
"""

from collections.abc import Callable

import numpy as np

from ringtrain.transport.buffers import ALIGNMENT

BLOCK_BYTES = 8 << 20


class Pinned:
    """``allocate(nbytes)`` is a uint8 array of page-locked memory. What is given back is kept for the next of its
    size."""

    def __init__(self, allocate: Callable[[int], np.ndarray], block_bytes: int = BLOCK_BYTES):
        self._allocate, self._block_bytes = allocate, block_bytes
        self._rest = np.zeros(0, np.uint8)  # of the newest block
        self._spare: dict[int, list[np.ndarray]] = {}
        self.nbytes = 0  # locked so far

    def take(self, nbytes: int) -> np.ndarray:
        """uint8, on a cache line of its own."""
        spare = self._spare.get(nbytes)
        return spare.pop() if spare else self._cut(nbytes)

    def give(self, piece: np.ndarray) -> None:
        self._spare.setdefault(piece.size, []).append(piece)

    def _cut(self, nbytes: int) -> np.ndarray:
        held = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if self._rest.size < held:
            size = max(held, self._block_bytes)
            self._rest = self._allocate(size)
            self.nbytes += size
        piece, self._rest = self._rest[:nbytes], self._rest[held:]
        return piece
