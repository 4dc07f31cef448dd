"""Choose how device memory goes, by a child with the maker that is named, from within ranks that mpirun started."""

import sys

from ringtrain.cli.world import in_world
from ringtrain.transport.cuda_aware.decision import UNKNOWN, Evidence
from ringtrain.transport.world import choose_way


def choose(transport):
    from ringtrain.transport.mpi import libmpi  # which starts the MPI

    # Nothing speaks against it, so that it is tried.
    libmpi.mpi_evidence = lambda: [Evidence(name, UNKNOWN, "") for name in ("query", "ucx")]
    maker, asked = sys.argv[1:]
    choice = choose_way(transport, asked, transport.rank, f"tests.fakes.makers:{maker}")
    if transport.rank == 1:
        print(choice.way, choice.rungs[-1].answer, choice.why)


sys.exit(in_world(choose))
