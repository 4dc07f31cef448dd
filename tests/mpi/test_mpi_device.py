"""Device memory over a real MPI, by both ways, and the child that tries them. The device is host memory that NumPy may
not read, and any MPI may: to it every MPI is aware."""

import re

import pytest

from tests.says import says
from tests.tiers import thorough

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("ranks", [3, *thorough(2)])
def test_device_memory_moves(mpirun, ranks):
    done = mpirun(ranks, ["device_moves.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 checks passed\nTrue\n"


@pytest.mark.parametrize(
    ("maker", "told"),
    [
        ("aware", (" yes ", " GB/s direct, ", " GB/s staged)")),
        *thorough(("absent", ("staged unknown ", "device 0 is not there"))),
    ],
)
def test_a_child_tries_first(mpirun, maker, told):
    """From ranks of an mpirun, whose words to them the child must not hear."""
    done = mpirun(2, ["tries.py", maker, "auto"])
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in told), done.stdout
    assert done.stderr == ""


def test_the_crash_of_a_child_is_its_own_and_direct_is_refused(mpirun):
    done = mpirun(2, ["tries.py", "unaware", "direct"])
    assert done.returncode == 2 and done.stdout == ""
    assert re.search("ringtrain: " + says("--mpi-cuda"), done.stderr)
    assert re.search(says("direct messages of 1 bytes"), done.stderr)
