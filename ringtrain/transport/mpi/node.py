"""The ranks of one machine, and memory that they share."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from ringtrain.transport.mpi.arrivals import check_arrivals
from ringtrain.transport.mpi.libmpi import LIBMPI, loaded
from ringtrain.transport.mpi.openmpi import quiet_ucx

SHARED_MEMORY = "/dev/shm"  # the file system of all shared memory on Linux
# Left free for every rank: the MPI has memory of its own there, whose pages it touches only when messages travel. An
# access without a free page ends the run by a bus error.
SPARE_BYTES = 1 << 20


def gather_text(comm, text: str) -> list[str]:
    """Return every rank's text on every rank: lengths first, then UTF-8 bytes, never a pickle."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    counts = np.zeros(comm.size, np.int64)
    comm.Allgather(np.array([encoded.size], np.int64), counts)
    check_arrivals(comm)
    starts = np.concatenate([[0], np.cumsum(counts)])
    every = np.empty(starts[-1], np.uint8)
    comm.Allgatherv(encoded, [every, counts, starts[:-1], MPI.BYTE])
    check_arrivals(comm)
    return [every[a:b].tobytes().decode() for a, b in pairwise(starts)]


def split_by_node(comm):
    """Return a communicator of the ranks of this node, in rank order. Collective.

    Under ``srun --mpi=pmix`` Open MPI may find every rank alone on its node. If it does, and host names say otherwise,
    host names win.
    """
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    largest = np.zeros(1, np.int64)
    comm.Allreduce(np.array([shared.size], np.int64), largest, MPI.MAX)
    hosts = gather_text(comm, MPI.Get_processor_name())
    if largest[0] > 1 or len(set(hosts)) == len(hosts):
        return shared
    shared.Free()
    return comm.Split(color=hosts.index(hosts[comm.rank]), key=comm.rank)


def leaders(comm, node_comm) -> list[int]:
    """Return, for every rank of ``comm``, the lowest rank of its node."""
    leader = np.array([comm.rank], np.int64)
    node_comm.Bcast(leader, 0)
    every = np.zeros(comm.size, np.int64)
    comm.Allgather(leader, every)
    check_arrivals(comm)
    return every.tolist()


def has_too_few_cores(node_comm) -> bool:
    """Whether the node has fewer cores for these ranks than there are ranks. Collective over ``node_comm``."""
    cores = gather_text(node_comm, ",".join(map(str, os.sched_getaffinity(0))))
    return len({core for bound in cores for core in bound.split(",")}) < node_comm.size


def shared_window(node_comm: MPI.Intracomm, nbytes: int) -> MPI.Win | None:
    """Return a window of shared memory to which this rank adds ``nbytes``; None if any rank cannot have it. Collective
    over ``node_comm``.
    """
    if not _all(node_comm, _has_room(_sum(node_comm, nbytes + SPARE_BYTES))):
        return None
    info = MPI.Info.Create({"alloc_shared_noncontig": "true"})  # every array on pages of its own
    window = None
    with suppress(MPI.Exception), quiet_ucx(loaded(LIBMPI)):
        window = MPI.Win.Allocate_shared(nbytes, 1, info=info, comm=node_comm)
    info.Free()
    if not _all(node_comm, window is not None) or window is None:
        # Freeing is collective and some ranks hold no window: the others keep theirs to the end of the process.
        return None
    window.Lock_all(MPI.MODE_NOCHECK)  # until it is freed: window.Sync then orders reads and writes
    return window


def _has_room(nbytes: int) -> bool:
    """Whether the file system of shared memory has ``nbytes`` free. Without space, some MPIs fail on one rank alone
    while the others wait for it, and others end in a bus error at the first access.
    """
    return not os.path.isdir(SHARED_MEMORY) or shutil.disk_usage(SHARED_MEMORY).free > nbytes


def window_arrays(window, node_comm, sizes: Sequence[int]) -> list[np.ndarray]:
    """Return the uint8 arrays in the window, of these sizes in bytes, by local rank. Each rank zeroes its own,
    so that its pages lie near it. Collective over ``node_comm``.
    """
    arrays = [
        np.frombuffer(window.Shared_query(local_rank)[0], np.uint8, nbytes) if nbytes else np.zeros(0, np.uint8)
        for local_rank, nbytes in enumerate(sizes)
    ]
    arrays[node_comm.rank][:] = 0
    node_comm.Barrier()
    return arrays


def free(window) -> None:
    """Free the window. Collective over the node."""
    window.Unlock_all()
    window.Free()


def _all(comm, flag: bool) -> bool:
    return bool(_reduced(comm, flag, MPI.MIN))


def _sum(comm, number: int) -> int:
    return _reduced(comm, number, MPI.SUM)


def _reduced(comm, number: int, op) -> int:
    every = np.zeros(1, np.int64)
    comm.Allreduce(np.array([number], np.int64), every, op)
    return int(every[0])
