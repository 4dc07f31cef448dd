"""The ranks that share a machine: who they are, and memory that they share."""

from itertools import pairwise

import numpy as np
from mpi4py import MPI


def gather_text(comm, text: str) -> list[str]:
    """Every rank's text, on every rank: lengths first, then UTF-8 bytes, never a pickle."""
    own = np.frombuffer(text.encode(), np.uint8)
    counts = np.zeros(comm.size, np.int64)
    comm.Allgather(np.array([own.size], np.int64), counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    every = np.empty(starts[-1], np.uint8)
    comm.Allgatherv(own, [every, counts, starts[:-1], MPI.BYTE])
    return [every[a:b].tobytes().decode() for a, b in pairwise(starts)]


def split_by_node(comm):
    """A communicator of the ranks of this node, in rank order. Collective.

    Under ``srun --mpi=pmix`` Open MPI may find every rank alone on its node. Where it does, and host names
    say otherwise, host names win.
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
    """For every rank of ``comm``, the lowest rank of its node."""
    leader = np.array([comm.rank], np.int64)
    node_comm.Bcast(leader, 0)
    every = np.zeros(comm.size, np.int64)
    comm.Allgather(leader, every)
    return every.tolist()


def shared_window(node_comm, nbytes: int):
    """(window, zeroed uint8 array) that the ranks of ``node_comm`` share, held by its rank 0; or None where
    any of them cannot have it. Collective over ``node_comm``."""
    own = nbytes if node_comm.rank == 0 else 0
    try:
        window = MPI.Win.Allocate_shared(own, 1, comm=node_comm)
    except MPI.Exception:
        window = None
    if not _all(node_comm, window is not None):
        # Freeing is collective and some ranks hold nothing: what was got is left to the end of the process.
        return None
    memory, _ = window.Shared_query(0)
    array = np.frombuffer(memory, np.uint8, nbytes) if nbytes else np.zeros(0, np.uint8)
    if node_comm.rank == 0:
        array[:] = 0
    node_comm.Barrier()
    return window, array


def _all(comm, own: bool) -> bool:
    every = np.zeros(1, np.int64)
    comm.Allreduce(np.array([own], np.int64), every, MPI.MIN)
    return bool(every[0])
