"""`ringtrain compare` under real mpirun: several trainings in one world of ranks, by every strategy."""

import json

import pytest

from tests.mpi.conftest import ROOT

pytestmark = pytest.mark.mpi

EXACT = (
    "allreduce --algorithm ring --overlap forward --bucket-bytes 1000",
    "allreduce --overlap forward --bucket-bytes 1000",
    "sharded",
    "master",
    "server --servers 2 --overlap forward",
    "allreduce --fc hybrid",
)
OTHERS = (
    "delayed",
    "averaging --average-every 2",
    "averaging --asynchronous --average-every 3 --servers 2",
    "gossip --gossip-max-lag 3",
    "allreduce --compress top-k --compress-ratio 0.1",
    "allreduce --compress powersgd",
)


def test_variants_in_one_world_and_one_that_diverges(mpirun, tmp_path):
    sync = ("allreduce --algorithm mpi", "allreduce --lr 1e30 --algorithm ring", *EXACT, *OTHERS)
    given = ["--ops", "reference", "--iterations", "6", "--batch", "30", "--optimizer", "sgd"]
    given = ["--sync", ",".join(sync), "--out", str(tmp_path / "c"), "--", *given]
    done = mpirun(3, ["-m", "ringtrain", "compare", *given], PYTHONPATH=str(ROOT))
    assert done.returncode == 1, done.stderr
    assert "not run" not in done.stdout and "the picture is in" in done.stdout
    first, hot, *rows = json.loads((tmp_path / "c" / "compare.json").read_text())["rows"]
    assert [row["outcome"] for row in (first, hot, *rows)] == ["done", "diverged", *["done"] * len(rows)]
    exact, others = rows[: len(EXACT)], rows[len(EXACT) :]
    assert all(abs(first["test_loss"] - row["test_loss"]) < 1e-5 for row in exact)
    assert all(0 < row["test_loss"] < 3 for row in others)
    assert first["images"] == exact[2]["images"] == others[1]["images"] == [60, 60, 60]
    assert all(sent > 0 for row in (exact[2], others[1]) for sent in row["bytes_sent"])
    assert first["bytes_sent"] == [None] * 3  # the MPI does not tell
    assert max(exact[2]["state_bytes"]) < min(first["state_bytes"]) / 2
    assert "the loss is" in hot["problem"] and "ringtrain: variant 'allreduce --lr 1e30" in done.stderr
