"""`ringtrain compare` under real mpirun: several trainings in one world of ranks, by every strategy."""

import json

import pytest

from tests.mpi.conftest import ROOT
from tests.tiers import thorough

pytestmark = pytest.mark.mpi

# Strategies whose losses are those of all-reduce, and others.
EXACT = (
    "sharded",
    "allreduce --algorithm ring --overlap forward --bucket-bytes 1000",
    "server --servers 2 --overlap forward",
)
OTHERS = ("averaging --average-every 2", "gossip --gossip-max-lag 3")
MORE_EXACT = ("sharded", "allreduce --overlap forward --bucket-bytes 1000", "master", "allreduce --fc hybrid")
MORE_OTHERS = (
    "averaging --average-every 2",
    "delayed",
    "averaging --asynchronous --average-every 3 --servers 2",
    "allreduce --compress top-k --compress-ratio 0.1",
    "allreduce --compress powersgd",
)


@pytest.mark.parametrize(("exact", "others"), [(EXACT, OTHERS), *thorough((MORE_EXACT, MORE_OTHERS))])
def test_variants_in_one_world_and_one_that_diverges(mpirun, tmp_path, exact, others):
    sync = ("allreduce --algorithm mpi", "allreduce --lr 1e30 --algorithm ring", *exact, *others)
    flags = ["--ops", "reference", "--iterations", "6", "--batch", "30", "--optimizer", "sgd"]
    line = ["compare", "--sync", ",".join(sync), "--out", str(tmp_path / "c"), "--", *flags]
    done = mpirun(3, ["-m", "ringtrain", *line], PYTHONPATH=str(ROOT))
    assert done.returncode == 1, done.stderr
    assert "not run" not in done.stdout and "the picture is in" in done.stdout
    first, hot, *rows = json.loads((tmp_path / "c" / "compare.json").read_text())["rows"]
    assert [row["outcome"] for row in (first, hot, *rows)] == ["done", "diverged", *["done"] * len(rows)]
    equal, apart = rows[: len(exact)], rows[len(exact) :]
    assert all(abs(first["test_loss"] - row["test_loss"]) < 1e-5 for row in equal)
    assert all(0 < row["test_loss"] < 3 for row in apart)
    assert first["images"] == equal[0]["images"] == apart[0]["images"] == [60, 60, 60]
    assert all(sent > 0 for row in (equal[0], apart[0]) for sent in row["bytes_sent"])
    assert first["bytes_sent"] == [None] * 3  # the MPI does not tell
    assert max(equal[0]["state_bytes"]) < min(first["state_bytes"]) / 2
    assert "the loss is" in hot["problem"] and "ringtrain: variant 'allreduce --lr 1e30" in done.stderr
