"""What `scripts/bench allocations` finds in real ranks: nothing."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "scripts" / "benchmarks" / "allocations.py"


@pytest.mark.mpi
def test_a_steady_iteration_allocates_no_array_on_any_rank(mpirun):
    """Neither where gradients are clipped, nor where norms of parameters are summed."""
    done = mpirun(2, [PROGRAM, "--as-rank", "digits"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(" rank 0 of 2 " in line and " 0.0 arrays, " in line for line in lines), done.stdout
    for way in ("--clip-norm", "--optimizer lars", "--optimizer lamb", "--sync sharded", "--fc hybrid"):
        assert sum(way in line for line in lines) >= 1, done.stdout
