"""Every strategy beside all-reduce under real mpirun: a run, its continuation at another number of ranks, a death."""

import json
import os
import signal

import pytest
from test_mpi_train import NET, arguments, lives, losses, ranks_of, read_until, records

pytestmark = pytest.mark.mpi

STRATEGIES = {
    "sharded": ("--optimizer", "adamw", "--clip-norm", 5),
    "delayed": (),
    "averaging": ("--average-every", 4, "--outer-momentum", 0.5),
    "allreduce": ("--fc", "hybrid"),
    "gossip": ("--gossip-window", 3),
    "master": ("--optimizer", "adamw", "--accumulate", 2),
}
EXACT = ("sharded", "allreduce", "master")


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(NET)
    return path


@pytest.mark.parametrize("sync", STRATEGIES)
def test_a_run_and_its_continuation_at_another_number_of_ranks(mpirun, net, tmp_path, sync):
    out, more = tmp_path / "out", ("--sync", sync, *STRATEGIES[sync], "--resume", "auto")
    for ranks, until in ((3, 30), (2, 60)):
        done = mpirun(ranks, arguments(net, out, "--iterations", until, *more))
        assert done.returncode == 0, done.stderr
    begun, end = records(out, "start"), records(out, "end")[-1]
    assert all(record["strategy"].startswith(sync) and record["exact"] == (sync in EXACT) for record in begun)
    assert (end["iterations"], end["ranks"]) == (60, 2) and end["test_accuracy"] > 0.6
    assert len(losses(out)) == 60


def test_sharded_and_master_are_all_reduce_on_real_ranks(mpirun, net, tmp_path):
    sharded, master = ("--sync", "sharded", "--algorithm", "ring"), ("--sync", "master")
    for out, more in (("whole", ()), ("slices", sharded), ("master", master)):
        done = mpirun(3, arguments(net, tmp_path / out, "--iterations", 20, *more))
        assert done.returncode == 0, done.stderr
    for out in ("slices", "master"):
        assert losses(tmp_path / out) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def test_overlap_changes_times_and_nothing_else_on_real_ranks(mpirun, net, tmp_path):
    """In memory that ranks share, over messages, and with the thread; buckets of a layer each."""
    for out, more in (
        ("backward", ()),
        ("forward", ("--overlap", "forward")),
        ("thread", ("--overlap", "forward", "--progress", "thread", "--algorithm", "ring")),
    ):
        given = ("--iterations", 30, "--dtype", "float64", "--evaluate-every", 10, "--bucket-bytes", 64, *more)
        done = mpirun(3, arguments(net, tmp_path / out, *given))
        assert done.returncode == 0, done.stderr
        (exchanged,) = records(tmp_path / out, "exchange")
        assert len(exchanged["buckets"]) == 4 and all(bucket["total_s"] > 0 for bucket in exchanged["buckets"])
        assert losses(tmp_path / out) == pytest.approx(losses(tmp_path / "backward"), rel=1e-12)


@pytest.mark.parametrize("sync", STRATEGIES)
def test_a_killed_rank_ends_all_and_the_checkpoint_is_good(mpirun_process, alone, net, tmp_path, sync):
    more = ("--epochs", 500, "--checkpoint-every", 3, "--sync", sync, *STRATEGIES[sync])
    process = mpirun_process(3, arguments(net, tmp_path / "out", *more))
    read_until(process, "epoch   2/500")
    ranks = ranks_of(process)
    os.kill(ranks[1], signal.SIGKILL)
    process.communicate(timeout=10)
    assert process.returncode != 0
    assert not any(map(lives, ranks))
    done = alone(["-m", "ringtrain", "evaluate", str(tmp_path / "out"), "--json"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["iteration"] >= 24


def test_what_does_not_go_together_is_told_once(mpirun, net, tmp_path):
    done = mpirun(2, arguments(net, tmp_path / "out", "--sync", "sharded", "--algorithm", "mpi"))
    assert done.returncode == 2
    assert done.stderr.count("--algorithm mpi is not made of two: give auto, or one of ring") == 1
