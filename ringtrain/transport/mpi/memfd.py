"""Shared memory without a name in the file system: a file of one process (``memfd``), which others of its node open by
way of that process. It is gone when nobody maps it any more, however they ended.

Source: memfd_create(2), proc(5) on /proc/PID/fd.
"""

import mmap
import os
import secrets
import threading

TOKEN_BYTES = 16  # with which the memory begins, on a page of its own


class Memfd:
    """This process's map of it. ``address``: by which others find it, until :meth:`close`."""

    def __init__(self, descriptor: int, memory: mmap.mmap, address: str = ""):
        self._descriptor, self.memory, self.address = descriptor, memory, address

    def close(self) -> None:
        """It is not opened any more by way of this process; the memory stays while anyone maps it."""
        os.close(self._descriptor)


def make(nbytes: int) -> Memfd | None:
    """So many bytes after the token's page, zeroed; None where the system has none to give."""
    try:
        descriptor = os.memfd_create("ringtrain")
    except OSError:
        return None
    try:
        # Taken at once: a page that is not to be had ends the process when it is touched.
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE + nbytes)
        memory = mmap.mmap(descriptor, mmap.PAGESIZE + nbytes)
    except OSError:
        os.close(descriptor)
        return None
    memory[:TOKEN_BYTES] = secrets.token_bytes(TOKEN_BYTES)
    return Memfd(descriptor, memory, f"/proc/{os.getpid()}/fd/{descriptor} {memory[:TOKEN_BYTES].hex()}")


def open_at(address: str, nbytes: int) -> Memfd | None:
    """What another process has made; None where this one may not have it, or finds a different process by that number,
    as one in a container does."""
    path, token = address.split()
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        memory = mmap.mmap(descriptor, mmap.PAGESIZE + nbytes)
    except (OSError, ValueError):
        os.close(descriptor)
        return None
    if memory[:TOKEN_BYTES].hex() != token:
        os.close(descriptor)
        return None
    return Memfd(descriptor, memory)


class Fence:
    """Orders this process's reads and writes of shared memory before it and after it: to give back a lock and to take
    it again orders both ways."""

    def __init__(self):
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()
        self._lock.acquire()
