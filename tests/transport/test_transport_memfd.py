"""Memory without a name: what one process makes another opens, and nothing is left of it."""

import mmap
import os
from types import SimpleNamespace

from ringtrain.transport.mpi import memfd
from ringtrain.transport.mpi.memfd import TOKEN_BYTES, Fence, create_memfd, open_memfd


def test_what_one_writes_the_other_reads_and_it_is_not_in_the_file_system():
    before = set(os.listdir("/dev/shm"))
    first = create_memfd(10_000)
    assert not any("ringtrain" in name for name in set(os.listdir("/dev/shm")) - before)
    opened = open_memfd(first.address, 10_000)
    first.memory[5000:5003] = b"abc"
    assert opened.memory[5000:5003] == b"abc" and not any(first.memory[TOKEN_BYTES:4096])
    first.close()
    assert open_memfd(first.address, 10_000) is None
    opened.close()
    opened.memory[5000:5001] = b"z"
    assert first.memory[5000:5003] == b"zbc"


def test_another_process_of_that_number_is_not_taken_for_the_one_that_made_it():
    first, other = create_memfd(100), create_memfd(100)
    path, token = first.address.split()
    assert open_memfd(f"{other.address.split()[0]} {token}", 100) is None
    assert open_memfd(f"{path} {token}", 1 << 30) is None  # smaller than it was said to be
    for each in (first, other):
        each.close()


def test_no_memory_is_none(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    memory = create_memfd(100)
    assert memory.reserve(0, 100) and os.fstat(memory._descriptor).st_blocks * 512 >= 2 * mmap.PAGESIZE
    monkeypatch.setattr(os, "posix_fallocate", full)
    descriptors = len(os.listdir("/proc/self/fd"))
    assert not memory.reserve(0, 100) and memory.reserve(100, 0)
    assert create_memfd(100) is None and len(os.listdir("/proc/self/fd")) == descriptors
    monkeypatch.setattr(os, "memfd_create", full)
    assert create_memfd(100) is None


def test_a_fence_releases_first_and_then_acquires(monkeypatch):
    """A release orders what came before it, an acquire what comes after it; a lane calls the fence between its data and
    its counts (tests/transport/test_transport_shared_arena.py). No machine could be made to show here what goes wrong
    without it."""
    done = []
    lock = SimpleNamespace(release=lambda: done.append("release"), acquire=lambda: done.append("acquire"))
    monkeypatch.setattr(memfd, "threading", SimpleNamespace(Lock=lambda: lock))
    fence = Fence()
    assert done == ["acquire"]
    fence()
    fence()
    assert done[1:] == ["release", "acquire"] * 2
