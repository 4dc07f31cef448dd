"""Choose how device memory goes, by a child with the maker that is named, from within ranks that mpirun started."""

import sys

from ringtrain.transport import libmpi
from ringtrain.transport.awareness import AUTO, UNKNOWN, Rung
from ringtrain.transport.world import choose_way, connect

transport = connect()
# Nothing speaks against it, so that it is tried.
libmpi.look = lambda: [Rung(name, UNKNOWN, "") for name in ("kinds", "query", "ucx")]
choice = choose_way(transport, AUTO, transport.rank, f"tests.fakes.makers:{sys.argv[1]}")
if transport.rank == 1:
    print(choice.way, choice.rungs[-1].answer, choice.why)
transport.close()
