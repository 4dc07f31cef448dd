"""Under mpirun at any number of ranks: what a program of others calls."""

import mmap
import os

import numpy as np
from mpi4py import MPI

from ringtrain import Communicator
from ringtrain.errors import UsageError
from tests.says import says

world = MPI.COMM_WORLD


def refused(message, call, *arguments):
    try:
        call(*arguments)
    except UsageError as error:
        assert says(message).matches(str(error)), error
    else:
        raise AssertionError(f"not refused: {message}")


def large_ones_in_pieces(communicator):
    for dtype in ("f4", "f8"):
        share = (np.arange(5_000_011) % 1013 + world.rank).astype(dtype)
        assert communicator.allreduce(share, out=share) is share
        assert (share == total(np.arange(5_000_011) % 1013)).all()


def total(share):
    """The sum of all ranks' ``share`` + rank."""
    return share * world.size + world.size * (world.size - 1) / 2


def shared_array(nbytes, before=0):
    """Memory that this process shares: the array, its path, and the bytes before it in the file."""
    descriptor = os.memfd_create("test")
    os.truncate(descriptor, before + nbytes)
    memory = mmap.mmap(descriptor, before + nbytes)
    return np.frombuffer(memory, np.uint8, nbytes, before), f"/proc/{os.getpid()}/fd/{descriptor}", before


def memory_that_exists(communicator):
    """A page is no multiple of what is before the array; the neighbours' maps begin on one."""
    last = world.size - 1
    array, path, before = shared_array(400_000, before=4099 * 8)
    array[:] = np.arange(array.size) % 251
    assert communicator.register(array, path, before)
    assert (array == np.arange(array.size) % 251).all()
    os.close(int(path.rpartition("/")[2]))  # it is not needed any more
    for turn in range(3):
        for dtype, op, reduce in (("f4", "sum", np.sum), ("i8", "max", np.max), ("f8", "mean", np.mean)):
            part = array.view(dtype)[turn : turn + 40_001]
            part[:] = np.arange(part.size) % 13 + world.rank
            shares = [np.arange(part.size) % 13 + rank for rank in range(world.size)]
            assert communicator.allreduce(part, op, out=part, algorithm="mapped") is part
            assert (part == reduce(shares, 0)).all()
    reduction = communicator.prepare(array.view("f4"), algorithm="mapped")
    for turn in range(3):
        array.view("f4")[:] = turn
        reduction.start()
        assert (reduction.wait() == turn * world.size).all()
    communicator.unregister(array)
    refused(says(array.nbytes), communicator.unregister, array)
    mean = communicator.allreduce(array.view("f4"), "mean")
    assert (mean == 2 * world.size).all()

    # what cannot be: of another size, not there, another file, and not shared at all
    array[:] = 7
    wrong = np.full(400_000, 7, np.uint8)
    other, other_path, _ = shared_array(400_000)
    other[:] = 7
    for memory, at, start in (
        (other[: 400_000 - 8 * (world.rank == last)], other_path, 0),
        (other, "/proc/self/fd/none" if world.rank == last else other_path, 0),
        (array if world.rank == last else other, other_path, 0),
        (wrong if world.rank == last else other, other_path, 0),
        (other, other_path, 8 * (world.rank == last)),
        (other[::2], other_path, 0),
    ):
        registered = communicator.register(memory, at, start)
        assert not registered or world.size == 1, (memory.size, at, start)
        if registered:
            communicator.unregister(memory)
        assert (memory == 7).all()
    assert communicator.register(other, other_path)  # and given back when the communicator is closed
    # the system has no such memory left
    fallocate, os.posix_fallocate = os.posix_fallocate, no_space if world.rank == last else os.posix_fallocate
    assert not communicator.register(*shared_array(1000))
    os.posix_fallocate = fallocate


def no_space(*_):
    raise OSError(28, "No space left on device")


def own_memory_in_another_byte_order(communicator):
    swapped = communicator.empty(3).view(">f4")
    swapped[:] = [1, 2, 3]
    assert communicator.allreduce(swapped, "max", out=swapped, algorithm="mpi").tolist() == [1, 2, 3]


def more_kinds_than_are_kept(communicator):
    handles = communicator._transport._requests.handles
    numbers = [len(handles)]
    for counts in (range(70), range(70, 200)):
        for count in counts:
            communicator.allreduce(np.ones(count), algorithm="ring")
        numbers.append(len(handles))
    assert numbers[2] <= max(numbers[:2]) + 8 * world.size, numbers
    for turn in range(2):
        for count in range(80):
            assert (communicator.allreduce(np.full(count, turn + 1.0)) == world.size * (turn + 1)).all()


def parts_of_the_world():
    part = world.Split(color=world.rank % 2, key=-world.rank)
    with Communicator(part, "star") as communicator:
        assert (communicator.rank, communicator.size) == (part.rank, part.size)
        ranks = range(world.rank % 2, world.size, 2)
        assert communicator.allreduce(np.array([world.rank]), "max").tolist() == [max(ranks)]
    part.Free()  # a duplicate was used, and is gone


def wrong_communicators():
    for wrong in (MPI.COMM_NULL, "MPI_COMM_WORLD", 3):
        refused(says(f"{wrong!r}"), Communicator, wrong)


if __name__ == "__main__":
    with Communicator(deadline_s=30.0) as communicator:
        for check in (
            large_ones_in_pieces,
            memory_that_exists,
            own_memory_in_another_byte_order,
            more_kinds_than_are_kept,
        ):
            check(communicator)
    parts_of_the_world()
    wrong_communicators()
    if world.rank == 0:
        print("all is well")
