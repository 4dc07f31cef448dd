"""Under mpirun: rank 1 goes wrong in the way that is named, in an algorithm's all-reduce under the guard.

guarded.py WAY ALGORITHM DEADLINE_S ELEMENTS
"""

import os
import signal
import sys
import time

import numpy as np

from ringtrain.cli.world import in_world
from ringtrain.exchange.guard import Guard
from ringtrain.exchange.guarded import Guarded
from ringtrain.exchange.reductions import prepare

WELL = 5  # collectives before


def add(a, b, y):
    np.add(a, b, out=y)


def is_stopped(rank, reduce):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    reduce()


def is_late(rank, reduce):
    """Alive, and elsewhere."""
    if rank == 1:
        while True:
            time.sleep(1)
    reduce()


def is_slow(rank, reduce):
    """Later than the others like, and in time."""
    if rank == 1:
        time.sleep(1.0)
    reduce()


def others_differ(rank, reduce, other):
    (other if rank == 1 else reduce)()


def body(transport) -> int:
    way, algorithm, deadline_s, count = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    guard = Guard(transport, deadline_s)
    watched = Guarded(transport, guard)

    def prepared(size, op="sum"):
        reduction = prepare(transport, np.ones(size, "f4"), algorithm, add, op=op, tag=3, guard=guard)

        def reduce():
            reduction.start()
            reduction.wait(600)

        return reduce

    if way == "has_another_size":
        good, other = prepared(count), prepared(count // 2 if transport.rank == 1 else count)
    else:
        good, other = prepared(count), prepared(count, "max")
    for _ in range(WELL):
        good()
    guard.iterate(7)
    if way in ("has_another_size", "does_another_operation"):
        other() if transport.rank == 1 else good()
        watched.barrier()
    elif way == "does_something_else":
        watched.gather_json(1) if transport.rank == 1 else good()
    else:
        {"is_stopped": is_stopped, "is_late": is_late, "is_slow": is_slow}[way](transport.rank, good)
    guard.close()
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(in_world(body))
