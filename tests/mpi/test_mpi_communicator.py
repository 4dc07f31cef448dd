"""The Python door under real mpirun, and the examples of its document."""

import re
from pathlib import Path

import pytest

from tests.tiers import thorough

pytestmark = pytest.mark.mpi

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.parametrize("ranks", [3, *thorough(1, 2)])
def test_everything_that_a_program_calls(mpirun, ranks):
    done = mpirun(ranks, ["communicates.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all is well\n"


def example(tmp_path, library):
    """The first example of the document that imports the library."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    path = tmp_path / "example.py"
    path.write_text(
        next(block for block in blocks if f"import {library}\n" in block or f"import {library} as" in block)
    )
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


def test_an_exception_on_one_rank_ends_all(mpirun, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(
        "import numpy as np\n"
        "from ringtrain import Communicator\n"
        "with Communicator() as communicator:\n"
        "    communicator.allreduce(np.ones(3), 'sum' if communicator.rank else 'summ')\n"
    )
    done = mpirun(2, ["-m", "mpi4py", path])
    assert done.returncode != 0 and "unknown operation 'summ': did you mean 'sum'?" in done.stderr


def test_the_mpi_finds_its_text_on_an_abort(alone, tmp_path):
    path = tmp_path / "aborts.py"
    path.write_text(
        "from ringtrain.transport.world import connect\nconnect()\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Abort(3)\n"
    )
    done = alone([path])
    assert done.returncode == 3 and "Sorry!" not in done.stdout + done.stderr


@pytest.mark.parametrize("ranks", [3, *thorough(1, 2, 4, 5)])
def test_collectives_messages_and_groups(mpirun, ranks):
    done = mpirun(ranks, ["collects.py"])
    assert (done.returncode, done.stdout) == (0, "all is well\n"), done.stderr


@pytest.mark.parametrize("ranks", [3, *thorough(2)])
def test_calls_that_differ_are_refused_on_all_ranks_and_write_nowhere_else(mpirun, ranks):
    done = mpirun(ranks, ["differs.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "92 cases are refused\n"


def test_what_ends_the_use_of_a_communicator(mpirun):
    done = mpirun(2, ["ends.py"])
    assert (done.returncode, done.stdout) == (0, "all is well\n"), done.stderr
