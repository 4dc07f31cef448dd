"""The communicator's own memory: of the kind that the transport moves fastest, lent to the user as arrays, and known
again by its address."""

import numpy as np

from ringtrain.transport.base import Transport

STAGING_BYTES = 16 << 20


class Memory:
    """All of it is allocated collectively, and stays until the transport is closed."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self._blocks: list[tuple[int, int]] = []  # address, bytes
        self._held: list[np.ndarray] = []  # lest other arrays come to lie where they were
        self._staging: np.ndarray | None = None

    def allocate(self, count: int, storage: np.dtype) -> np.ndarray:
        """``count`` zeros."""
        block = self._transport.allocate(count, storage)
        self._blocks.append((address(block), block.nbytes))
        self._held.append(block)
        return block

    def staging(self, count: int, storage: np.dtype) -> np.ndarray:
        """The first ``count`` elements of the memory through which all others' arrays pass, one at a time; at most
        :data:`STAGING_BYTES`."""
        if self._staging is None:
            self._staging = self._transport.allocate(STAGING_BYTES, np.uint8)
        return self._staging[: count * storage.itemsize].view(storage)

    def place(self, array: np.ndarray) -> tuple[int, int] | None:
        """(block, offset in bytes) of an array that lies in this memory in one piece; None for all others."""
        if not (self._blocks and array.size and array.flags.c_contiguous and array.dtype.isnative):
            return None
        start = address(array)
        for index, (block, nbytes) in enumerate(self._blocks):
            if block <= start and start + array.nbytes <= block + nbytes:
                return index, start - block
        return None


def address(array: np.ndarray) -> int:
    """Of its first element."""
    return array.__array_interface__["data"][0]
