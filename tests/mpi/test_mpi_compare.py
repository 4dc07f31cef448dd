"""`ringtrain compare` under real mpirun: several trainings in one world of ranks."""

import json

import pytest

from tests.mpi.conftest import ROOT

pytestmark = pytest.mark.mpi


def test_variants_in_one_world_and_one_that_diverges(mpirun, tmp_path):
    sync = "allreduce --algorithm mpi,sharded,allreduce --lr 1e30 --algorithm ring,averaging --average-every 2"
    given = [
        "--out",
        tmp_path / "c",
        "--",
        "--ops",
        "reference",
        "--iterations",
        6,
        "--batch",
        30,
        "--optimizer",
        "sgd",
    ]
    done = mpirun(3, ["-m", "ringtrain", "compare", "--sync", sync, *map(str, given)], PYTHONPATH=str(ROOT))
    assert done.returncode == 1, done.stderr
    assert "not run" not in done.stdout and "the picture is in" in done.stdout
    first, sharded, hot, averaging = json.loads((tmp_path / "c" / "compare.json").read_text())["rows"]
    assert [row["outcome"] for row in (first, sharded, hot, averaging)] == ["done", "done", "diverged", "done"]
    assert abs(first["test_loss"] - sharded["test_loss"]) < 1e-5
    assert first["images"] == sharded["images"] == averaging["images"] == [60, 60, 60]
    assert all(sent > 0 for row in (sharded, averaging) for sent in row["bytes_sent"])
    assert first["bytes_sent"] == [None] * 3  # the MPI does not tell
    assert max(sharded["state_bytes"]) < min(first["state_bytes"]) / 2
    assert "the loss is" in hot["problem"] and "ringtrain: variant 'allreduce --lr 1e30" in done.stderr
