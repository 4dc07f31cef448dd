"""Under mpirun: after some good collectives rank 1 goes wrong in the way that is named, under the guard.

guarded.py WAY ALGORITHM DEADLINE_S ELEMENTS
"""

import os
import signal
import sys
import threading
import time

import numpy as np

from ringtrain.allreduce.catalogue import make_allreduce
from ringtrain.cli.world import in_world
from ringtrain.monitor.guard import Guard
from ringtrain.monitor.guarded_transport import GuardedTransport, bare
from tests.fakes.clock import until

GOOD, ITERATION, TICK_S = 5, 7, 0.25


class Heartbeats:
    """The clock of a watchdog in which time passes as all ranks that live are seen to: however seldom a busy machine
    runs them, none is taken for stopped. It stands still until the ranks that wait have joined the last collective.

    dead: whether rank 1 gives no signs of life in this way
    """

    def __init__(self, guard, dead: bool):
        self._board, self._now = guard.recorder, time.monotonic()
        near = [self._board.rank] if guard.recorder.gap else range(self._board.size)
        self._alive = [rank for rank in near if not (dead and rank == 1)]
        self._waiting = [rank for rank in near if rank != 1]
        self._seen = self._beats()

    def _beats(self):
        return self._board.beats[self._alive]

    def __call__(self) -> float:
        beats = self._beats()
        if (beats != self._seen).all() and has_joined(self._board, self._waiting):
            self._seen, self._now = beats, self._now + TICK_S
        return self._now


def has_joined(board, ranks) -> bool:
    """The collective that goes wrong."""
    rows = board.read()
    return all(GOOD + 1 in rows[rank].entries for rank in ranks)


def add(a, b, y):
    np.add(a, b, out=y)


class Rank:
    """What the ways use: ``good()`` is the all-reduce that is expected."""

    def __init__(self, transport, guard, algorithm, count):
        self.transport, self.guard, self.algorithm, self.count = transport, guard, algorithm, count
        self.good = self.prepared(count, "sum")

    def prepared(self, count, op):
        buffer = np.ones(count, "f4")
        reduction = make_allreduce(self.transport, buffer, self.algorithm, add, op=op, tag=3, guard=self.guard)

        def reduce():
            reduction.start()
            reduction.wait(600)

        return reduce


def is_stopped(rank):
    os.kill(os.getpid(), signal.SIGSTOP)


def is_late(rank):
    """Alive, and elsewhere for ever."""
    threading.Event().wait()


def is_slow(rank):
    """Late: for some time the others wait for it."""
    board = rank.guard.recorder
    until(lambda: has_joined(board, (0, 2)))
    start = board.beats.copy()
    until(lambda: (board.beats - start >= 3).all())
    rank.good()


def has_another_size(rank):
    rank.prepared(rank.count // 2, "sum")()


def does_another_operation(rank):
    rank.prepared(rank.count, "max")()


def does_something_else(rank):
    GuardedTransport(rank.transport, rank.guard).gather_json(rank.count)


WAITED_FOR = ("is_stopped", "is_late", "is_slow")


def body(transport) -> int:
    way, algorithm, deadline_s, count = sys.argv[1:]
    transport = bare(transport)  # the guard of the world itself numbers what it sees
    if way in WAITED_FOR:
        guard = Guard(transport, float(deadline_s))
        guard.watchdog._clock = Heartbeats(guard, dead=way == "is_stopped")
    else:  # time stands still: who tells of a difference waits until all have begun what differs
        guard = Guard(transport, float(deadline_s), clock=lambda: 0.0)
    rank = Rank(transport, guard, algorithm, int(count))
    for _ in range(GOOD):
        rank.good()
    guard.iterate(ITERATION)
    globals()[way](rank) if transport.rank == 1 else rank.good()
    if way == "does_another_operation":
        threading.Event().wait()  # nothing has failed: the guard's thread ends the run when it has seen the rows
    GuardedTransport(transport, guard).barrier()
    guard.close()
    if transport.rank == 0:
        print(f"done, gap: {guard.recorder.gap!r}")
    return 0


if __name__ == "__main__":
    sys.exit(in_world(body))
