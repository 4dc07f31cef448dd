"""DDP's buckets in memory that the ranks of a node share: moved there once, and then reduced where they lie.

PyTorch can put the storage of a tensor that exists already into shared memory; all its views follow. Only what DDP's
reducer hands over is moved: the reducer keeps its buckets, and uses them through tensors alone. A tensor that a user
gives to ``dist.all_reduce`` is never moved: NumPy's views and raw pointers of it would keep the old memory.
"""

import os
import warnings
import weakref

import numpy as np
import torch

from ringtrain.api.libraries import torch_memory
from ringtrain.arrays import array_address

SHARED_MEMORY = "/dev/shm"  # where PyTorch's shared memory lies, on Linux
SMALLEST_BYTES = 16 << 10  # copying less costs nothing
SPARE_BYTES = 16 << 20  # that others of the node may take meanwhile
MIB = 1 << 20


class SharedBuckets:
    """The shared buckets of a communicator. All ranks share and release the same ones, in one order."""

    def __init__(self, communicator):
        self._communicator = communicator
        self._shared: list[tuple[weakref.ref, np.ndarray]] = []  # the owner, and the memory
        self._addresses: set[int] = set()
        self._refused = communicator.size == 1  # else: a bucket could not be shared, on any rank

    def wants(self, tensor: torch.Tensor) -> bool:
        """Return whether a bucket does not lie in shared memory, and may; the same on all ranks."""
        return not self._refused and tensor.untyped_storage().data_ptr() not in self._addresses

    def share(self, tensor: torch.Tensor, known: bool, owner: object) -> None:
        """Move the storage of a bucket into shared memory. Collective.

        known: whether this memory has been a bucket before. It is moved if so on all ranks: DDP makes new buckets after
               the first iteration. Ranks agree, since the address of a bucket says nothing to the others
        owner: the bucket is released when this is gone
        """
        storage = tensor.untyped_storage()
        wanted = storage.nbytes() * self._communicator.size  # all ranks may be on this node
        agreed = np.array([known, _free_bytes() >= wanted + SPARE_BYTES], np.int32)
        self._communicator.allreduce(agreed, "min", out=agreed)
        if agreed[0]:
            self._refused = not self._moved(storage, owner, wanted, bool(agreed[1]))

    def _moved(self, storage: torch.UntypedStorage, owner: object, wanted: int, has_room: bool) -> bool:
        """Move it, and return whether all ranks have."""
        why = f"{SHARED_MEMORY} has no {wanted // MIB:,} MiB free on every node"
        path, memory = "", _bytes_of(storage)
        if has_room:
            try:
                descriptor, _ = storage._share_fd_cpu_()
                path, memory = f"/proc/{os.getpid()}/fd/{descriptor}", _bytes_of(storage)
                why = "ranks of a node cannot map it"
            except RuntimeError as error:  # it has reserved the memory before it writes, so there is no SIGBUS
                why = str(error).splitlines()[0]
            if self._communicator.register(memory, path):
                self._shared.append((weakref.ref(owner), memory))
                self._addresses.add(storage.data_ptr())
                return True
        if self._communicator.rank == 0:
            size = f"{storage.nbytes() / MIB:.3g} MiB"
            note = f"note: DDP's bucket of {size} stays in this process's own memory, and is copied at each all-reduce"
            warnings.warn(f"{note}: {why}", stacklevel=2)
        return False

    def buckets_of(self, owner: object) -> list[np.ndarray]:
        """Return the buckets of an owner, in the order in which they were shared."""
        return [memory for reference, memory in self._shared if reference() is owner]

    def release(self) -> None:
        """Forget the buckets whose owners are gone on all ranks. Collective."""
        if not self._shared:
            return
        gone = np.array([owner() is None for owner, _ in self._shared], np.int32)
        self._communicator.allreduce(gone, "min", out=gone)
        for (_, memory), is_gone in zip(self._shared, gone, strict=True):
            if is_gone:
                self._communicator.unregister(memory)
                self._addresses.discard(array_address(memory))
        self._shared = [each for each, is_gone in zip(self._shared, gone, strict=True) if not is_gone]


def _bytes_of(storage: torch.UntypedStorage) -> np.ndarray:
    return torch_memory(torch.empty(0, dtype=torch.uint8).set_(storage))


def _free_bytes() -> int:
    try:
        file_system = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return file_system.f_bavail * file_system.f_frsize
