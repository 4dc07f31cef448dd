"""Memory that the ranks of a node share without a window of the MPI: for worlds in which a rank may die.

All ranks of a window free it together, and Open MPI makes its windows by calls that may wait forever after a death.
"""

import mmap
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from ringtrain.transport.mpi.memfd import Memfd, create_memfd, open_memfd
from ringtrain.transport.mpi.node import gather_text


def shared_arrays(node_comm, sizes: Sequence[int]) -> list[np.ndarray] | None:
    """Return uint8 arrays of these sizes in bytes, by place in the node, zeroed, each at the start of a page; None if
    any rank cannot have them.
    """
    starts = _starts(sizes)
    held = _mapped(node_comm, starts[-1])
    everyone = np.array([held is not None], np.int64)
    node_comm.Allreduce(MPI.IN_PLACE, everyone, MPI.MIN)  # no rank closes it before all have opened it
    if held is None:
        return None
    held.close()
    if not everyone[0]:
        return None
    arrays = [
        np.frombuffer(held.memory, np.uint8, count, mmap.PAGESIZE + start)
        for count, start in zip(sizes, starts[:-1], strict=True)
    ]
    arrays[node_comm.rank][:] = 0  # touched first by its own rank, so that its pages lie where that one runs
    node_comm.Barrier()
    return arrays


def _mapped(node_comm, nbytes: int) -> Memfd | None:
    """Return the same memory on all ranks of the node: made by the first, opened by the others."""
    own = create_memfd(nbytes) if node_comm.rank == 0 else None
    address = gather_text(node_comm, own.address if own else "")[0]
    if own is not None or not address:
        return own
    return open_memfd(address, nbytes)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return the start of each array, and the end of the last."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    return starts
