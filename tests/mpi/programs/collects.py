"""Under mpirun at any number of ranks: the collectives, messages and groups of the communicator."""

import gc
import threading
import weakref

import numpy as np
from mpi4py import MPI

from ringtrain import Communicator
from ringtrain.collectives.algorithms.shards import add_up
from ringtrain.errors import StalledError, TransportError
from ringtrain.transport.mpi.messages import Messages
from ringtrain.transport.mpi.requests import IN_FLIGHT
from ringtrain.transport.native_call import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    GATHER,
    REDUCE_SCATTER,
    SCATTER,
    NativeCall,
)
from tests.api import contract

world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def same_bits_for_any_ranks(communicator):
    shards = np.random.default_rng(1).standard_normal((60, 5001)).astype(np.float32)  # 1 to 6 ranks divide them
    part = shards[rank * 60 // size : (rank + 1) * 60 // size]
    for total in (
        communicator.allreduce(part, reproducible=True),
        communicator.allreduce(part, reproducible=True, async_op=True).wait(),
    ):
        assert total.tobytes() == add_up(list(shards), np.add).tobytes()


def messages_never_wait_for_collectives(communicator):
    if size == 1:
        return
    to, source = (rank + 1) % size, (rank - 1) % size
    long = np.full(1_000_000, rank, np.int32)
    into, any_one, seen = np.empty_like(long), np.empty(3), threading.Event()
    sends = [communicator.send(long, to, 5, async_op=True), communicator.send(np.full(3, rank), to, 6, async_op=True)]
    del sends[1]  # of another type, and never awaited: close() waits for it
    receive = communicator.recv(into, source, 5, async_op=True)
    receive.add_done_callback(lambda work: seen.set())
    barrier = communicator.barrier(async_op=True) if rank == 0 else None  # the others join when theirs have arrived
    assert (receive.wait() == source).all() and receive.source == source and seen.wait(20)
    small = communicator.recv(any_one.view(np.int64), tag=6, async_op=True)
    assert small.wait()[0] == source and small.source == source
    (barrier or communicator.barrier(async_op=True)).wait()
    sends[0].wait()
    if rank == 0:
        communicator.send(np.zeros(0), 1)
    elif rank == 1:
        communicator.recv(np.zeros(0), 0)


def given_up():
    """The MPI still writes to arrays of operations that nobody waits for any more."""
    transport = Messages(world)
    space, arrays = transport.tag_space(), [np.empty(70_000), np.empty(70_000)]
    kept = [weakref.ref(array) for array in arrays]
    waits = [space.receive(arrays[0], (rank - 1) % size, 1)]
    if rank != size - 1:
        waits.append(transport.native_start(NativeCall(BROADCAST, recv=arrays[1], root=size - 1)))
    for wait in waits:
        try:
            wait.wait(0)
        except StalledError:
            continue
        raise AssertionError("nobody has sent")
    del arrays, waits, wait
    gc.collect()  # the errors hold what was waited for
    assert [each() is not None for each in kept] == [True, rank != size - 1]
    transport.barrier()
    if rank == size - 1:
        transport.native_start(NativeCall(BROADCAST, recv=np.ones(70_000), root=rank)).wait(20)
    space.send(np.ones(70_000), (rank + 1) % size, 1).wait(20)
    for handle in list(IN_FLIGHT):
        handle.wait(20)
    del handle
    gc.collect()
    assert not IN_FLIGHT and not any(each() is not None for each in kept)
    transport.close()


def long_counts(limit):
    """As where counts do not fit into 32 bits."""
    transport = Messages(world, message_bytes=limit)
    rows = np.arange(3000) * np.arange(1.0, size + 1)[:, None]
    ours = rows[rank].copy()

    def run(kind, send, shape, **options):
        recv = np.zeros(shape)
        transport.native_start(NativeCall(kind, send, recv, **options)).wait(20)
        return recv

    even = dict.fromkeys(("send_counts", "recv_counts"), [24_000] * size)
    assert (run(ALL_GATHER, ours, rows.shape) == rows).all()
    assert rank or (run(GATHER, ours, rows.shape) == rows).all()
    assert not rank or run(GATHER, ours, 0).size == 0
    assert (run(SCATTER, rows if rank == 0 else ours[:0], 3000) == ours).all()
    assert (run(ALL_REDUCE, ours, 3000) == rows.sum(0)).all()
    assert (run(REDUCE_SCATTER, rows, 3000) == ours * size).all()
    assert (run(ALL_TO_ALL, rows * (rank + 1), rows.shape, **even) == ours * rows[:, 1:2]).all()
    array = ours.copy()
    transport.native_start(NativeCall(BROADCAST, recv=array, root=size - 1)).wait(20)
    assert (array == rows[-1]).all()
    if size > 1:
        space, into = transport.tag_space(), np.empty(3000)
        ends = [space.receive(into, None, 1), space.send(ours, (rank + 1) % size, 1)]
        for end in ends:
            end.wait(20)
        assert (into == rows[rank - 1]).all() and ends[0].source == (rank - 1) % size
        for elements in (512, 700, 1024):  # whole parts, too: a message ends where it ends, and the next is whole
            ends = [space.send(ours[:count], (rank + 1) % size, 2) for count in (1500, elements)]
            try:
                space.receive(np.empty(elements), (rank - 1) % size, 2).wait(20)
                raise AssertionError("a message of another length is no error")
            except TransportError:
                space.receive(into[:elements], (rank - 1) % size, 2).wait(20)
            assert (into[:elements] == rows[rank - 1][:elements]).all()
            for end in ends:
                end.wait(20)
    transport.barrier()
    transport.close()


for checks in (False, True):
    with Communicator(check_collectives=checks, deadline_s=60.0) as communicator:
        for check in contract.CHECKS:
            check(communicator, (0, 1, 7, 1001 if check is contract.all_reduce else 70_001), async_op=checks)
        contract.uneven_parts(communicator, (), async_op=False)  # again
        same_bits_for_any_ranks(communicator)
        messages_never_wait_for_collectives(communicator)
        if not checks:  # the guard ends the run
            contract.differences(communicator, (), async_op=False)
for most in (1 << 30, 4096):
    long_counts(most)
if size > 1:
    given_up()
if rank == 0:
    print("all is well")
Communicator().barrier(async_op=True)  # neither awaited nor closed: the program ends nevertheless
