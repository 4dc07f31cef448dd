"""The communicator's own memory: of the kind that the transport moves fastest, lent to the user as arrays, and
recognised by its address.
"""

import numpy as np

from ringtrain.transport.base import Transport

STAGING_BYTES = 16 << 20


class Memory:
    """The memory. All of it is allocated collectively, and stays until the transport is closed."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self._blocks: list[tuple[int, int]] = []  # address, bytes
        self._held: list[np.ndarray] = []  # kept, so that no other array gets their addresses
        self._staging: np.ndarray | None = None

    def allocate(self, count: int, storage: np.dtype) -> np.ndarray:
        """Return ``count`` zeros."""
        block = np.asarray(self._transport.allocate(count, storage))
        self._blocks.append((array_address(block), block.nbytes))
        self._held.append(block)
        return block

    def staging(self, count: int, storage: np.dtype) -> np.ndarray:
        """Return the first ``count`` elements of the staging memory, through which all foreign arrays pass, one at a
        time; at most :data:`STAGING_BYTES`.
        """
        if self._staging is None:
            self._staging = np.asarray(self._transport.allocate(STAGING_BYTES, np.uint8))
        return self._staging[: count * storage.itemsize].view(storage)

    def place(self, array: np.ndarray) -> tuple[int, int] | None:
        """Return (allocation, offset in bytes) of a contiguous array in this memory; None for all others."""
        if not (self._blocks and array.size and array.flags.c_contiguous and array.dtype.isnative):
            return None
        start = array_address(array)
        for index, (block, nbytes) in enumerate(self._blocks):
            if block <= start and start + array.nbytes <= block + nbytes:
                return index, start - block
        return None


def array_address(array: np.ndarray) -> int:
    """Return the address of the first element."""
    return array.__array_interface__["data"][0]
