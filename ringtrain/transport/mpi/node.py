"""The ranks of one machine."""

import os
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from ringtrain.transport.launch_environment import APART
from ringtrain.transport.mpi.arrivals import check_arrivals


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
    """Return a communicator of the ranks of this node, in rank order, and words, :data:`APART`, if the MPI finds every
    rank alone on its node, and host names, which win, say otherwise. Collective.

    Open MPI 5 does under ``srun --mpi=pmix`` where Slurm's NodeName is not the host name, by which PMIx 5 looks for it.
    """
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    largest = np.zeros(1, np.int64)
    comm.Allreduce(np.array([shared.size], np.int64), largest, MPI.MAX)
    hosts = gather_text(comm, MPI.Get_processor_name())
    if largest[0] > 1 or len(set(hosts)) == len(hosts):
        return shared, ""
    shared.Free()
    return comm.Split(color=hosts.index(hosts[comm.rank]), key=comm.rank), f", {APART}"


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
