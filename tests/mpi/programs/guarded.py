"""Under mpirun: after some good collectives rank 1 goes wrong in the way that is named, under the guard.

guarded.py WAY ALGORITHM DEADLINE_S ELEMENTS
"""

import os
import signal
import sys
import threading

import numpy as np

from ringtrain.cli.world import in_world
from ringtrain.exchange.guard import Guard
from ringtrain.exchange.guarded import Guarded, bare
from ringtrain.exchange.reductions import prepare

GOOD, ITERATION, TRAVEL_S = 5, 7, 5.0


def add(a, b, y):
    np.add(a, b, out=y)


class Rank:
    """What the ways use: ``good()`` is the all-reduce that is expected."""

    def __init__(self, transport, guard, algorithm, count):
        self.transport, self.guard, self.algorithm, self.count = transport, guard, algorithm, count
        self.good = self.prepared(count, "sum")

    def prepared(self, count, op):
        buffer = np.ones(count, "f4")
        reduction = prepare(self.transport, buffer, self.algorithm, add, op=op, tag=3, guard=self.guard)

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
    """Late by less than the deadline."""
    threading.Event().wait(0.5)
    rank.good()


def has_another_size(rank):
    rank.prepared(rank.count // 2, "sum")()


def does_another_operation(rank):
    rank.prepared(rank.count, "max")()


def does_something_else(rank):
    Guarded(rank.transport, rank.guard).gather_json(rank.count)


WAYS = (is_stopped, is_late, is_slow, has_another_size, does_another_operation, does_something_else)


def body(transport) -> int:
    way, algorithm, deadline_s, count = sys.argv[1:]
    transport = bare(transport)  # the guard of the world itself numbers what it sees
    guard = Guard(transport, float(deadline_s))
    rank = Rank(transport, guard, algorithm, int(count))
    for _ in range(GOOD):
        rank.good()
    guard.iterate(ITERATION)
    ways = {known.__name__: known for known in WAYS}
    ways[way](rank) if transport.rank == 1 else rank.good()
    if way == "does_another_operation":
        threading.Event().wait(TRAVEL_S)  # nothing has failed: rows that come as messages need their time
    Guarded(transport, guard).barrier()
    guard.close()
    if transport.rank == 0:
        print(f"done, gap: {guard.gap!r}")
    return 0


if __name__ == "__main__":
    sys.exit(in_world(body))
