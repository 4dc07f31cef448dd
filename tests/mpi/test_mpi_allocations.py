"""A steady iteration on real ranks allocates no array."""

import pytest


@pytest.mark.mpi
def test_a_steady_iteration_allocates_no_array_on_any_rank(mpirun):
    """Neither where gradients are clipped, nor where norms of parameters are summed."""
    done = mpirun(2, ["allocates.py", "digits"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(" rank 0 of 2 " in line and " 0 arrays, " in line for line in lines), done.stdout
    for way in ("--clip-norm", "--optimizer lars", "--optimizer lamb", "--sync sharded", "--fc hybrid"):
        assert sum(way in line for line in lines) >= 1, done.stdout
