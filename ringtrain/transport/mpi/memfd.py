"""Shared memory without a name in the file system: a ``memfd`` of one process, which others of its node open through
that process. It is gone when no process maps it any more, however they ended.

Source: memfd_create(2), proc(5) on /proc/PID/fd.
"""

import mmap
import os
import secrets
import threading

import numpy as np

TOKEN_BYTES = 16  # with which the memory begins, on a page of its own


class Memfd:
    """This process's map of it. Others find it by ``address`` until :meth:`close`."""

    def __init__(self, descriptor: int, memory: mmap.mmap, address: str = ""):
        self._descriptor, self.memory, self.address = descriptor, memory, address

    def reserve(self, start: int, nbytes: int) -> bool:
        """Have the system allocate some bytes, where this process runs: otherwise the first access to a page that the
        system lacks would end the process. Returns whether it could."""
        try:
            if nbytes:
                os.posix_fallocate(self._descriptor, mmap.PAGESIZE + start, nbytes)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the file: no other process can open it any more. The memory stays while a process maps it."""
        os.close(self._descriptor)


def create_memfd(nbytes: int) -> Memfd | None:
    """Return ``nbytes`` of zeroed memory, to be reserved, behind a page for the token; None if the system has no such
    memory."""
    try:
        descriptor = os.memfd_create("ringtrain")
    except OSError:
        return None
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
        os.ftruncate(descriptor, mmap.PAGESIZE + nbytes)
        memory = mmap.mmap(descriptor, mmap.PAGESIZE + nbytes)
    except OSError:
        os.close(descriptor)
        return None
    memory[:TOKEN_BYTES] = secrets.token_bytes(TOKEN_BYTES)
    return Memfd(descriptor, memory, f"/proc/{os.getpid()}/fd/{descriptor} {memory[:TOKEN_BYTES].hex()}")


def open_memfd(address: str, nbytes: int) -> Memfd | None:
    """Return the memory that another process created; None if this process may not open it, or if that process number
    belongs to another process, as in a container.
    """
    path, token = address.split()
    opened = _open_map(path, 0, mmap.PAGESIZE + nbytes)
    if opened is None:
        return None
    descriptor, memory = opened
    if memory[:TOKEN_BYTES].hex() != token:
        os.close(descriptor)
        return None
    return Memfd(descriptor, memory)


def open_bytes(path: str, start: int, nbytes: int, allocate: bool = False) -> np.ndarray | None:
    """Return bytes of a file as memory that this process shares with all who map it; None if this process may not open
    it, or if it is shorter. ``allocate``: also None if the system lacks space for those that were never written: an
    access to such a page ends the process.
    """
    before = start % mmap.ALLOCATIONGRANULARITY
    opened = _open_map(path, start - before, before + nbytes)
    if opened is None:
        return None
    descriptor, memory = opened
    try:
        if allocate:
            os.posix_fallocate(descriptor, start, nbytes)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return np.frombuffer(memory, np.uint8, nbytes, before)


def _open_map(path: str, start: int, nbytes: int) -> tuple[int, mmap.mmap] | None:
    """Return the descriptor of a file and a map of its bytes; None if it cannot be opened, or is shorter."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except (OSError, ValueError):
        return None
    try:
        return descriptor, mmap.mmap(descriptor, nbytes, offset=start)
    except (OSError, ValueError):
        os.close(descriptor)
        return None


class Fence:
    """A memory fence: orders this process's reads and writes of shared memory before it and after it. Releasing and
    taking a lock orders both.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()
        self._lock.acquire()
