"""Memory that the ranks of a node share without a window of the MPI: for worlds in which a rank may die.

A window is freed by all of its ranks together, and Open MPI's are made by calls that a death may leave waiting for
good. This memory has no name in the file system: it is a file of the first rank's (``memfd``), which the others open by
way of that process. It is gone when nobody maps it any more, however they ended.

Source: memfd_create(2), proc(5) on /proc/PID/fd.
"""

import mmap
import os
import secrets
import threading
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from ringtrain.transport.node import gather_text

TOKEN_BYTES = 16


class Fence:
    """Orders this rank's reads and writes of shared memory before it and after it: to give back a lock and to take it
    again orders both ways."""

    def __init__(self):
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()
        self._lock.acquire()


def share(node_comm, sizes: Sequence[int]) -> list[np.ndarray] | None:
    """uint8 arrays of so many bytes, by place in the node, zeroed; None where any of the ranks cannot have them.
    Collective over ``node_comm``."""
    starts = _starts(sizes)
    held, told = _make(starts[-1]) if node_comm.rank == 0 else (None, "")
    first = gather_text(node_comm, told)[0]
    if held is None and first:
        held = _open(*first.split(), starts[-1])
    everyone = np.zeros(1, np.int64)
    node_comm.Allreduce(np.array([held is not None], np.int64), everyone, MPI.MIN)  # nobody closes before all have it
    if held is None:
        return None
    descriptor, memory = held
    os.close(descriptor)
    if not everyone[0]:
        return None
    pieces = [np.frombuffer(memory, np.uint8, count, start) for count, start in zip(sizes, starts[:-1], strict=True)]
    pieces[node_comm.rank][:] = 0  # touched first by its own rank, so that its pages lie where that one runs
    node_comm.Barrier()
    return pieces


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each piece begins, on pages of its own after the token's, and where the last ends."""
    starts = [mmap.PAGESIZE]
    for size in sizes:
        starts.append(starts[-1] + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    return starts


def _make(nbytes: int) -> tuple[tuple | None, str]:
    """(descriptor, memory) of a new file; and where others find it, with what it begins."""
    try:
        descriptor = os.memfd_create("ringtrain")
    except OSError:
        return None, ""
    try:
        os.posix_fallocate(descriptor, 0, nbytes)  # else pages that are not to be had end the process when touched
        memory = mmap.mmap(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        return None, ""
    token = secrets.token_bytes(TOKEN_BYTES)
    memory[:TOKEN_BYTES] = token
    return (descriptor, memory), f"/proc/{os.getpid()}/fd/{descriptor} {token.hex()}"


def _open(path: str, token: str, nbytes: int) -> tuple | None:
    """The same file; None where this process may not, or finds another process by that number (in a container)."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        memory = mmap.mmap(descriptor, nbytes)
    except (OSError, ValueError):
        os.close(descriptor)
        return None
    if memory[:TOKEN_BYTES].hex() != token:
        os.close(descriptor)
        return None
    return descriptor, memory
