"""The Python door under real mpirun, and the examples of its document."""

import re
from pathlib import Path

import pytest

from tests.tiers import thorough

pytestmark = pytest.mark.mpi

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.parametrize(
    ("program", "ranks", "output"),
    [
        ("communicates.py", 3, "all is well\n"),  # everything that a program calls
        ("collects.py", 3, "all is well\n"),  # collectives, messages and groups
        # Calls that differ are refused on all ranks, and write nowhere else.
        ("differs.py", 3, "92 cases are refused\n"),
        ("ends.py", 2, "all is well\n"),  # what ends the use of a communicator
        *thorough(
            *(("communicates.py", ranks, "all is well\n") for ranks in (1, 2)),
            *(("collects.py", ranks, "all is well\n") for ranks in (1, 2, 4, 5)),
            ("differs.py", 2, "92 cases are refused\n"),
        ),
    ],
)
def test_programs_of_others(mpirun, program, ranks, output):
    done = mpirun(ranks, [program])
    assert (done.returncode, done.stdout) == (0, output), done.stdout + done.stderr


def example(tmp_path, library):
    """The first example of the document that imports the library."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    path = tmp_path / "example.py"
    path.write_text(next(block for block in blocks if re.search(rf"import {library}( as.*)?\n", block)))
    return path


def test_the_example_of_numpy(mpirun, alone, tmp_path):
    path = example(tmp_path, "numpy")
    done = mpirun(4, ["-m", "mpi4py", path])
    assert (done.returncode, done.stderr) == (0, "")  # the MPI, which mpi4py has started, prints nothing
    assert done.stdout in DOCUMENT.read_text() and done.stdout == "4 ranks: mean 1.5, sum 6\n"
    done = alone([path], MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert (done.stdout, done.stderr) == ("1 ranks: mean 0, sum 0\n", "")


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_examples_of_other_libraries(mpirun, tmp_path, library):
    pytest.importorskip(library)
    done = mpirun(2, ["-m", "mpi4py", example(tmp_path, library)])
    assert done.returncode == 0, done.stderr


def test_an_exception_on_one_rank_ends_all(mpirun):
    program = "import numpy, ringtrain\nwith ringtrain.Communicator() as communicator:\n"
    program += "    communicator.allreduce(numpy.ones(3), 'sum' if communicator.rank else 'summ')\n"
    done = mpirun(2, ["-m", "mpi4py", "-c", program])
    assert done.returncode != 0 and "unknown operation 'summ': did you mean 'sum'?" in done.stderr


APART = """
from mpi4py import MPI
from ringtrain.transport.world import connect

class Apart(MPI.Intracomm):
    def Split_type(self, *args, **kwargs):
        return MPI.COMM_SELF.Dup()

transport = connect(comm=Apart(MPI.COMM_WORLD))
assert (transport.local_size, transport.nodes) == (2, 1)
print(transport.describe())
"""


def test_ranks_that_the_mpi_takes_for_ranks_of_several_nodes_are_neighbours_and_that_is_said(mpirun):
    done = mpirun(2, ["-c", APART])
    assert done.returncode == 0 and done.stdout.count("within a node go over the network") == 2, done.stderr


def test_the_mpi_finds_its_text_on_an_abort(alone):
    connected = "from ringtrain.transport.world import connect; connect()"
    done = alone(["-c", f"{connected}; from mpi4py import MPI; MPI.COMM_WORLD.Abort(3)"])
    assert done.returncode == 3 and "Sorry!" not in done.stdout + done.stderr
