"""The memory that the ranks of a node share: of one rank, which the others map.

It is no window of the MPI: all ranks of a window free it together, and Open MPI makes its windows by calls that may
wait forever after a death.
"""

import json
import mmap
import secrets
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.transport.buffers import aligned_zeros, as_bytes
from ringtrain.transport.mpi.arrivals import check_arrivals
from ringtrain.transport.mpi.memfd import Fence, Memfd, create_memfd, open_bytes, open_memfd
from ringtrain.transport.mpi.node import gather_text
from ringtrain.transport.mpi.requests import naming_peers
from ringtrain.transport.shared_arena import (
    TOKEN_BYTES,
    SharedArena,
    SignalCounters,
    can_be_shared,
    without_arena,
)

Allocate = Callable[[int, DTypeLike], Array]


class NodeSharedMemory:
    """The shared memory of the ranks of ``node_comm``. ``allocate``: makes the memory of arenas, which is then private;
    None: it is shared.
    """

    def __init__(self, comm: MPI.Intracomm, node_comm: MPI.Intracomm, allocate: Allocate | None):
        self._comm, self._node_comm = comm, node_comm
        self.scratch = allocate or aligned_zeros
        self._shares = allocate is None and node_comm.size > 1
        self._fence = Fence()
        self.arenas: list[SharedArena] = []
        self.counters = SignalCounters(self.window, node_comm.rank, node_comm.size, self._fence)

    def allocate(self, count: int, dtype: DTypeLike) -> Array:
        """Return zeroed memory, shared if the system has shared memory. Collective."""
        nbytes, local_rank = count * np.dtype(dtype).itemsize, self._node_comm.rank
        arrays = self._share([nbytes] * self._node_comm.size) if self._shares and nbytes else None
        if arrays is None:
            return self.scratch(count, dtype)
        self.arenas.append(SharedArena(arrays, local_rank))
        return arrays[local_rank].view(dtype)

    def share_mapped(self, array: np.ndarray, path: str, offset: int) -> bool:
        """As :meth:`ringtrain.transport.base.Transport.share_mapped`."""
        with naming_peers("sharing memory", self._comm):
            arrays = mapped_arrays(self._node_comm, array, path, offset, self._fence)
        if arrays is None:
            return False
        self.arenas.append(SharedArena(arrays, self._node_comm.rank))
        return True

    def unshare_mapped(self, array: np.ndarray) -> None:
        """As :meth:`ringtrain.transport.base.Transport.unshare_mapped`."""
        self.arenas = without_arena(self.arenas, array)

    def window(self, nbytes: int) -> np.ndarray | None:
        """Return one zeroed array that all ranks share; None without shared memory. Collective."""
        arrays = self._share([nbytes] + [0] * (self._node_comm.size - 1))
        return None if arrays is None else arrays[0]

    def _share(self, sizes: Sequence[int]) -> list[np.ndarray] | None:
        """Return arrays of these sizes in bytes, by local rank, that all of its ranks read and write."""
        with naming_peers("sharing memory", self._comm):
            return shared_arrays(self._node_comm, sizes)


def shared_arrays(node_comm, sizes: Sequence[int]) -> list[np.ndarray] | None:
    """Return uint8 arrays of these sizes in bytes, by local rank, zeroed, each at the start of a page, near its own
    rank; None if any rank cannot have them.
    """
    starts, rank = _starts(sizes), node_comm.rank
    mapping = _mapped(node_comm, starts[-1])
    everyone = np.array([mapping is not None and mapping.reserve(starts[rank], sizes[rank])], np.int64)
    node_comm.Allreduce(MPI.IN_PLACE, everyone, MPI.MIN)  # no rank closes it before all have opened it
    check_arrivals(node_comm)
    if mapping is None:
        return None
    mapping.close()
    if not everyone[0]:
        return None
    arrays = [
        np.frombuffer(mapping.memory, np.uint8, count, mmap.PAGESIZE + start)
        for count, start in zip(sizes, starts[:-1], strict=True)
    ]
    arrays[rank][:] = 0
    node_comm.Barrier()
    check_arrivals(node_comm)
    return arrays


def mapped_arrays(
    node_comm, array: np.ndarray, path: str, offset: int, sync: Callable[[], None]
) -> list[np.ndarray] | None:
    """Return the arrays of the node's ranks as bytes, by local rank. Each array lies in a shared mapping of
    the file ``path`` from byte ``offset`` on; None if any rank cannot map them all. Collective over ``node_comm``.

    A path may name another file in another process, as /proc does in containers, and an array may lie in a private
    mapping. So each rank writes a token into its own array, and all look for it in their maps.
    """
    memory = as_bytes(array) if can_be_shared(array) else np.zeros(0, np.uint8)
    offers = [json.loads(text) for text in gather_text(node_comm, json.dumps([path, offset, memory.size]))]
    maps: list[np.ndarray] = []
    if memory.size and {nbytes for _, _, nbytes in offers} == {memory.size}:
        opened = [
            open_bytes(path, offset, memory.size, allocate=local_rank == node_comm.rank)
            for local_rank, (path, offset, _) in enumerate(offers)
        ]
        maps = [each for each in opened if each is not None]
    kept, token = memory[:TOKEN_BYTES].copy(), np.frombuffer(secrets.token_bytes(TOKEN_BYTES), np.uint8)
    memory[:TOKEN_BYTES] = token[: kept.size]
    sync()
    tokens = gather_text(node_comm, token.tobytes().hex())
    sync()
    everywhere = np.array([[each[:TOKEN_BYTES].tobytes().hex() for each in maps] == tokens], np.int64)
    node_comm.Allreduce(MPI.IN_PLACE, everywhere, MPI.MIN)  # all have looked
    check_arrivals(node_comm)
    memory[:TOKEN_BYTES] = kept
    if not everywhere[0]:
        return None
    return [memory if local_rank == node_comm.rank else each for local_rank, each in enumerate(maps)]


def _mapped(node_comm, nbytes: int) -> Memfd | None:
    """Return the same memory on all ranks of the node: made by the first, opened by the others."""
    memfd = create_memfd(nbytes) if node_comm.rank == 0 else None
    address = gather_text(node_comm, memfd.address if memfd else "")[0]
    if memfd is not None or not address:
        return memfd
    return open_memfd(address, nbytes)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return the start of each array, and the end of the last."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    return starts
