"""Under mpirun: rank 1 fails in the way that is named; the others exchange with it."""

import sys

import numpy as np

from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution.execute import Execution
from ringtrain.errors import RingtrainError
from ringtrain.transport.world import connect


def add(a, b, y):
    np.add(a, b, out=y)


def is_absent(transport):
    transport.barrier()  # what takes the ranks apart at their start is over
    if transport.rank == 1:
        transport.barrier()
    run = Execution(make_schedule("star", transport.size), transport, np.ones(1000, "f4"), add, tag=2)
    run.start()
    run.wait(0.2)


def sends_too_much(transport):
    """Rank 0 has room for less than rank 1 sends."""
    if transport.rank == 1:
        handle = transport.sends([(0, np.ones(100))], tag=5)
    else:
        handle = transport.recvs([(1, np.ones(10))], tag=5)
    handle.start()
    handle.wait(10)
    transport.barrier()


def addresses_nobody(transport):
    transport.sends([(99, np.ones(4))], tag=1)


if __name__ == "__main__":
    transport = connect()
    try:
        globals()[sys.argv[1]](transport)
    except BaseException as error:
        print(f"rank {transport.rank}: {type(error).__name__}: {error}", file=sys.stderr)
        transport.abort(error.exit_code if isinstance(error, RingtrainError) else 1)
