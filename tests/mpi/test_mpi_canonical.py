"""Sums of shards over real ranks: the same bits in worlds of one to five."""

import pytest

pytestmark = pytest.mark.mpi


def test_worlds_of_one_to_five_ranks_have_the_same_bits(mpirun):
    done = mpirun(5, ["adds_shards.py"], timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"{size} ranks" for size in range(1, 6)]
    assert len({line.split(": ")[1] for line in lines}) == 1
