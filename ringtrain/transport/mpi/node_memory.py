"""Memory that the ranks of a node share without a window of the MPI: for worlds in which a rank may die.

A window is freed by all of its ranks together, and Open MPI's are made by calls that a death may leave waiting for
good.
"""

import mmap
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from ringtrain.transport.mpi.memfd import Memfd, make, open_at
from ringtrain.transport.mpi.node import gather_text


def share(node_comm, sizes: Sequence[int]) -> list[np.ndarray] | None:
    """uint8 arrays of so many bytes, by place in the node, zeroed, each from a page's beginning; None where any of the
    ranks cannot have them. Collective over ``node_comm``."""
    starts = _starts(sizes)
    held = _mapped(node_comm, starts[-1])
    everyone = np.array([held is not None], np.int64)
    node_comm.Allreduce(MPI.IN_PLACE, everyone, MPI.MIN)  # nobody closes before all have opened it
    if held is None:
        return None
    held.close()
    if not everyone[0]:
        return None
    pieces = [
        np.frombuffer(held.memory, np.uint8, count, mmap.PAGESIZE + start)
        for count, start in zip(sizes, starts[:-1], strict=True)
    ]
    pieces[node_comm.rank][:] = 0  # touched first by its own rank, so that its pages lie where that one runs
    node_comm.Barrier()
    return pieces


def _mapped(node_comm, nbytes: int) -> Memfd | None:
    """The same memory on all ranks of the node: made by the first, opened by the others."""
    own = make(nbytes) if node_comm.rank == 0 else None
    address = gather_text(node_comm, own.address if own else "")[0]
    if own is not None or not address:
        return own
    return open_at(address, nbytes)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each piece begins, and where the last ends."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    return starts
