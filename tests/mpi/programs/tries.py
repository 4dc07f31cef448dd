"""Try device memory in a child, by the maker that is named, from within ranks that mpirun started."""

import sys

from ringtrain.transport import libmpi, trial
from ringtrain.transport.awareness import AUTO, UNKNOWN, Rung, agree_on_way
from ringtrain.transport.world import connect

transport = connect()


def attempt():
    return trial.attempt(libmpi.launcher(), libmpi.vendor(), f"tests.fakes.makers:{sys.argv[1]}", [0, 1])


def look():
    """Nothing speaks against it, so that it is tried."""
    return [Rung(name, UNKNOWN, "") for name in ("kinds", "query", "ucx")]


choice = agree_on_way(transport, AUTO, look, attempt)
if transport.rank == 1:
    print(choice.way, choice.rungs[-1].answer, choice.why)
transport.close()
