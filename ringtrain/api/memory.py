"""The communicator's own memory: of the kind that the transport moves fastest, lent to the user as arrays, and
recognised by its address.
"""

from itertools import count

import numpy as np

from ringtrain.arrays import array_address
from ringtrain.transport.base import Transport

STAGING_BYTES = 16 << 20


class Memory:
    """The memory. All of it is allocated or registered collectively, and has the same numbers on all ranks. What is
    allocated stays until the transport is closed."""

    def __init__(self, transport: Transport):
        self._transport = transport
        # number → address, bytes, and the array, so that no other one gets its address
        self._blocks: dict[int, tuple[int, int, np.ndarray]] = {}
        self._numbers = count()
        self._registered: set[int] = set()
        self._staging: np.ndarray | None = None

    def allocate(self, length: int, storage: np.dtype) -> np.ndarray:
        """Return ``length`` zeros."""
        block = np.asarray(self._transport.allocate(length, storage))
        self._add(block)
        return block

    def register(self, array: np.ndarray, path: str, offset: int) -> bool:
        """Take in memory that exists, as :meth:`Transport.share_mapped` does. Returns whether all ranks could."""
        shared = self._transport.share_mapped(array, path, offset)
        if not all(self._transport.gather_json(shared)):
            if shared:
                self._transport.unshare_mapped(array)
            return False
        self._registered.add(self._add(array))
        return True

    def registered(self, array: np.ndarray) -> int | None:
        """Return the number of a registered array; None for others."""
        block = array_address(array), array.nbytes
        return next((number for number in self._registered if self._blocks[number][:2] == block), None)

    def unregister(self, number: int) -> None:
        self._transport.unshare_mapped(self._blocks.pop(number)[2])
        self._registered.remove(number)

    def close(self) -> None:
        """Give back what is registered."""
        for number in list(self._registered):
            self.unregister(number)

    def _add(self, block: np.ndarray) -> int:
        number = next(self._numbers)
        self._blocks[number] = array_address(block), block.nbytes, block
        return number

    def staging(self, length: int, storage: np.dtype) -> np.ndarray:
        """Return the first ``length`` elements of the staging memory, through which all foreign arrays pass, one at a
        time; at most :data:`STAGING_BYTES`."""
        if self._staging is None:
            self._staging = np.asarray(self._transport.allocate(STAGING_BYTES, np.uint8))
        return self._staging[: length * storage.itemsize].view(storage)

    def position(self, array: np.ndarray) -> tuple[int, int] | None:
        """Return (number, offset in bytes) of a contiguous array in this memory; None for all others."""
        if not (self._blocks and array.size and array.flags.c_contiguous and array.dtype.isnative):
            return None
        start = array_address(array)
        for number, (block, nbytes, _) in self._blocks.items():
            if block <= start and start + array.nbytes <= block + nbytes:
                return number, start - block
        return None
