"""What ends the use of a communicator: a fork, in the child alone; a signal in the middle of a call. Nobody gets wrong
numbers, and the next communicator works."""

import multiprocessing
import os
import signal
import sys
from dataclasses import replace

import numpy as np

from ringtrain import Communicator
from ringtrain.errors import StalledError, UsageError
from tests.says import says

MEETING = Communicator(deadline_s=60.0)


def refusal(call):
    try:
        call()
    except UsageError as error:
        return str(error)
    return f"no error: {call}"


def calls_of(c, array, reduction, work):
    """Calls of all ways: the short one, prepared, in flight, messages."""
    return [
        lambda: c.allreduce(array, out=array),
        lambda: c.allreduce(np.ones(3), async_op=True),
        lambda: c.allreduce(np.ones((2, 2)), reproducible=True),
        lambda: c.broadcast(np.ones(3)),
        lambda: c.reduce_scatter(np.ones((c.size, 2))),
        lambda: c.prepare(np.ones(3)),
        lambda: c.empty(3),
        lambda: c.register(np.ones(3), "/proc/self/fd/0"),
        lambda: c.group([0]),
        lambda: c.send(np.ones(3), 1 - c.rank),
        lambda: c.recv(np.ones(3), 1 - c.rank),
        c.barrier,
        reduction.wait,
        reduction.test,
        work.wait,
    ]


def child(c, *arrays):
    wrong = [each for each in map(refusal, calls_of(c, *arrays)) if not says("forked", "hand").matches(each)]
    wrong += [each for each in (refusal(Communicator),) if not says("know", "parent").matches(each)]
    c.close()
    del arrays
    with c:
        pass
    os._exit(len(wrong))


def forks():
    c = Communicator(deadline_s=60.0)
    array = np.ones(1000, np.float32)
    for _ in range(3):
        c.allreduce(array, out=array)
    other = np.full(10, c.rank, np.int64)
    reduction = c.prepare(other)
    MEETING.barrier()
    if c.rank == 1:
        MEETING.barrier()  # rank 0 has forked with both in flight
    work = c.recv(np.zeros(3), 1, async_op=True) if c.rank == 0 else c.send(np.ones(3), 0, async_op=True)
    reduction.start()
    if c.rank == 0:
        process = multiprocessing.get_context("fork").Process(target=child, args=(c, array, reduction, work))
        process.start()
        process.join()
        assert process.exitcode == 0, f"{process.exitcode} calls of the child are not refused"
        MEETING.barrier()
    assert reduction.wait().tolist() == [1] * 10
    work.wait()
    array[:] = c.rank
    assert (c.allreduce(array, out=array) == 1).all()
    c.close()


class Alarm(Exception):
    """What a program's own handler raises."""


def interrupted(kind, array, call, again, at_once=False):
    """Rank 0 waits in the call, and gets the signal there; rank 1 comes too late to it. ``at_once``: rank 0 closes
    while rank 1 still sends to it."""
    c, armed = Communicator(deadline_s=60.0), []
    c._transport.patience = replace(c._transport.patience, poll=lambda: armed and os.kill(os.getpid(), armed.pop()))
    for _ in range(3):
        again(c, array)
    if c.rank == 0:
        armed.append(kind)
        try:
            call(c, array)
            raise AssertionError("the signal is lost")
        except (KeyboardInterrupt, Alarm) as error:
            name = type(error).__name__
        for each in (lambda: c.allreduce(np.ones(3)), lambda: again(c, array), c.barrier):
            assert says(name).matches(refusal(each)), refusal(each)
        MEETING.barrier()
    else:
        MEETING.barrier()
        c.set_deadline(0.2)
        for _ in range(2):  # what rank 0 had begun may end, and the next cannot
            try:
                again(c, np.ones(len(array)))
            except StalledError:
                break
        else:
            raise AssertionError("rank 1 goes on alone")
    if not at_once:
        MEETING.barrier()
    c.close()
    with Communicator(deadline_s=60.0) as after:
        assert after.allreduce(np.ones(3)).tolist() == [after.size] * 3


def main():
    def raise_alarm(*_):
        raise Alarm

    signal.signal(signal.SIGUSR1, raise_alarm)

    def in_place(c, array):
        c.allreduce(array, out=array)

    def in_ring(c, array):
        c.allreduce(array, algorithm="ring")

    def by_mpi(c, array):
        c.broadcast(array, algorithm="mpi")

    forks()
    for kind in (signal.SIGINT, signal.SIGUSR1):
        for call in (in_place, in_ring, by_mpi):
            interrupted(kind, np.ones(100), call, call)
    interrupted(signal.SIGINT, np.ones(1 << 20), in_ring, in_ring, at_once=True)
    MEETING.barrier()
    if MEETING.rank == 0:
        print("all is well", flush=True)


sys.exit(main())
