"""Device memory over a real MPI, by both ways, and the child that tries them. The device is host memory that NumPy may
not read, and any MPI may: to it every MPI is aware."""

import pytest

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("ranks", [2, 3])
def test_device_memory_moves(mpirun, ranks):
    done = mpirun(ranks, ["device_moves.py"], timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 checks passed\nTrue\n"
