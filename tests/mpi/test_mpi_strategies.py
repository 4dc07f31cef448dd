"""Every strategy beside all-reduce under real mpirun: a run, its continuation at another number of ranks, a death."""

import json
import os
import signal

import pytest
from test_mpi_train import EPOCHS, NET, arguments, lives, losses, ranks_of, read_until, records

from tests.mpi.conftest import PATIENCE_S
from tests.says import says
from tests.tiers import daily, thorough

pytestmark = pytest.mark.mpi

STRATEGIES = {
    "sharded": ("--optimizer", "adamw", "--clip-norm", 5),
    "delayed": (),
    "averaging": ("--average-every", 4, "--outer-momentum", 0.5),
    "allreduce": ("--fc", "hybrid"),
    "gossip": ("--gossip-max-lag", 3),
    "master": ("--optimizer", "adamw", "--accumulate", 2),
    "server": ("--servers", 2, "--overlap", "forward"),
}
# The same names again, where ranks are apart.
APART = {
    "server, dedicated, stale": ("--sync", "server", "--dedicated", "--staleness", 3),
    "server, asynchronous": ("--sync", "server", "--asynchronous", "--overlap", "forward"),
    "pipeline, server, stale": ("--fc", "pipeline", "--sync", "server", "--staleness", 2),
    "pipeline, server, asynchronous": ("--fc", "pipeline", "--sync", "server", "--asynchronous"),
    "averaging, asynchronous": ("--sync", "averaging", "--asynchronous", "--average-every", 3, "--servers", 2),
}
EXACT = ("sharded", "allreduce", "master", "server")
# What one rank alone is given in place of the above, for the same run. The others are other runs at another number of
# ranks, each time the same: 67 and 70 % of the test images are right then, and 67 % of one rank's.
ADAMW = ("--optimizer", "adamw")
ONE_RANK = {
    "sharded": (*ADAMW, "--clip-norm", 5),
    "delayed": ("--sync", "delayed"),
    "allreduce": (),
    "master": ADAMW,
    "server": (),
}
LAST = '  { name = "fc", kind = "Linear", units = 10 },'
TWO_FC = NET.replace(LAST, LAST.replace("fc", "fc1").replace("10", "16") + "\n" + LAST)


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(NET)
    return path


@pytest.mark.parametrize("sync", daily(STRATEGIES, "sharded", "server"))
def test_a_run_and_its_continuation_at_another_number_of_ranks(mpirun, alone, net, tmp_path, sync):
    out, double = tmp_path / "out", ("--dtype", "float64")
    more = ("--sync", sync, *STRATEGIES[sync], *double, "--resume", "auto")
    for ranks, until in ((3, 30), (2, 60)):
        done = mpirun(ranks, arguments(net, out, "--iterations", until, *more))
        assert done.returncode == 0, done.stderr
    begun, end = records(out, "start"), records(out, "end")[-1]
    assert all(record["strategy"].startswith(sync) and record["exact"] == (sync in EXACT) for record in begun)
    assert (end["iterations"], end["ranks"]) == (60, 2) and len(losses(out)) == 60
    if sync in ONE_RANK:
        assert_is_of_one_rank(alone, net, out, *ONE_RANK[sync], *double)
    else:
        assert end["test_accuracy"] > 0.65


def assert_is_of_one_rank(alone, net, out, *flags):
    """The same losses and the same accuracy after as many iterations by one rank."""
    one, wanted = out.with_name("one"), losses(out)
    done = alone(arguments(net, one, "--iterations", len(wanted), *flags))
    assert done.returncode == 0, done.stderr
    assert losses(one) == pytest.approx(wanted, rel=1e-9)
    assert records(one, "end")[-1]["test_accuracy"] == records(out, "end")[-1]["test_accuracy"]


PIPELINE = ("--fc", "pipeline", "--accumulate", 3)


def test_a_pipeline_and_its_continuation_at_another_number_of_ranks(mpirun, alone, net, tmp_path):
    out, double = tmp_path / "out", ("--dtype", "float64")
    net.write_text(TWO_FC)
    for ranks, until, fc_ranks in ((4, 30, 2), (3, 60, 1)):
        more = (*PIPELINE, "--fc-ranks", fc_ranks, "--iterations", until, "--resume", "auto")
        done = mpirun(ranks, arguments(net, out, *double, *more))
        assert done.returncode == 0, done.stderr
    begun, end = records(out, "start"), records(out, "end")[-1]
    assert [record["exact"] for record in begun] == [True, True]
    assert all(f"2 + {fc_ranks} ranks" in record["strategy"] for fc_ranks, record in zip((2, 1), begun, strict=True))
    assert (end["iterations"], end["ranks"]) == (60, 3) and len(losses(out)) == 60
    assert_is_of_one_rank(alone, net, out, *double)
    notes = [record["text"] for record in records(out, "note")]
    assert any(text.startswith("ranks 0, 1: conv to drop, ") for text in notes)
    assert sum(text.startswith(("rank 2: fc1", "rank 3: fc")) for text in notes) == 3


# Two dedicated servers among three ranks, one among two.
BESIDE_HYBRID = {"server": (("--servers", 2, "--dedicated"), ("--servers", 1)), "master": (("--accumulate", 2), ())}


@pytest.mark.parametrize("sync", daily(BESIDE_HYBRID, "server"))
def test_divided_layers_beside_another_exchange_of_the_rest(mpirun, alone, net, tmp_path, sync):
    out, double = tmp_path / "out", ("--dtype", "float64", "--clip-norm", 5)
    net.write_text(TWO_FC)
    for ranks, until, more in zip((3, 2), (30, 60), BESIDE_HYBRID[sync], strict=True):
        given = ("--fc", "hybrid", "--sync", sync, *double, "--iterations", until, *more)
        done = mpirun(ranks, arguments(net, out, *given, "--resume", "auto"))
        assert done.returncode == 0, done.stderr
    assert [record["exact"] for record in records(out, "start")] == [True, True]
    assert_is_of_one_rank(alone, net, out, *double)


@pytest.mark.thorough
def test_overlap_changes_times_and_nothing_else_on_real_ranks(mpirun, net, tmp_path):
    """In memory that ranks share, and over messages; buckets of a layer each."""
    for out, more in (
        ("backward", ()),
        ("forward", ("--overlap", "forward")),
        ("messages", ("--overlap", "forward", "--algorithm", "ring")),
    ):
        given = ("--iterations", 30, "--dtype", "float64", "--evaluate-every", 10, "--bucket-bytes", 64, *more)
        done = mpirun(3, arguments(net, tmp_path / out, *given))
        assert done.returncode == 0, done.stderr
        (exchanged,) = records(tmp_path / out, "exchange")
        assert len(exchanged["buckets"]) == 4 and all(bucket["total_s"] > 0 for bucket in exchanged["buckets"])
        assert losses(tmp_path / out) == pytest.approx(losses(tmp_path / "backward"), rel=1e-12)


@pytest.mark.thorough
def test_norms_and_statistics_of_the_whole_are_those_of_one_rank(mpirun, alone, net, tmp_path):
    """Kernels are rehearsed in turns; sums of layers run beside those of gradients and of the loss."""
    net.write_text(NET.replace('{ name = "relu"', '{ name = "norm", kind = "BatchNorm" },\n  { name = "relu"'))
    flags = ("--batch-norm", "sync", "--sync", "sharded", "--dtype", "float64")
    flags = (*flags, "--optimizer", "lars", "--trust-coefficient", 0.05, "--momentum-correction")
    for name, run in (("three", lambda given: mpirun(3, given)), ("one", alone)):
        done = run(arguments(net, tmp_path / name, "--iterations", 20, "--lr", 0.5, "--warmup", 10, *flags))
        assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "three") == pytest.approx(losses(tmp_path / "one"), rel=1e-9)


# The rank that is killed, and flags.
KILLED = {
    "allreduce, the first": (0, ()),
    "allreduce, the last": (2, ()),
    **{sync: (1, ("--sync", sync, *more)) for sync, more in STRATEGIES.items()},
    "pipeline, in front": (1, PIPELINE),
    "pipeline, fully connected": (2, PIPELINE),
    **{case: (2, flags) for case, flags in APART.items()},
}


@pytest.mark.timing
@pytest.mark.parametrize("case", daily(KILLED, "allreduce, the first", "server, asynchronous"))
def test_a_killed_rank_ends_all_and_the_checkpoint_is_good(mpirun_process, alone, net, tmp_path, case):
    victim, flags = KILLED[case]
    process = mpirun_process(3, arguments(net, tmp_path / "out", "--epochs", EPOCHS, "--checkpoint-every", 3, *flags))
    read_until(process, f" 2/{EPOCHS}")
    ranks = ranks_of(process)
    os.kill(ranks[victim], signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert not any(map(lives, ranks))
    done = alone(["-m", "ringtrain", "evaluate", str(tmp_path / "out"), "--json"])
    assert done.returncode == 0, done.stderr
    assert case in APART or json.loads(done.stdout)["iteration"] >= 24


SERVED = (*PIPELINE, "--sync", "server", "--dtype", "float64")


@pytest.mark.timing
@pytest.mark.parametrize(
    ("victim", "flags"), thorough((0, ("--fc-ranks", 1)), (3, ("--fc-ranks", 1)), (2, ("--fc-ranks", 2)))
)
def test_a_pipeline_that_lost_a_server_or_a_fully_connected_rank_goes_on_at_other_numbers(
    mpirun, mpirun_process, alone, net, tmp_path, victim, flags
):
    """From its newest checkpoint, as if nobody had died."""
    out = tmp_path / "out"
    given = arguments(net, out, "--epochs", EPOCHS, "--checkpoint-every", 7, *SERVED, *flags)
    process = mpirun_process(4, given)
    read_until(process, f" 2/{EPOCHS}")
    ranks = ranks_of(process)
    os.kill(ranks[victim], signal.SIGKILL)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 137 and f"rank {victim} " in told, told
    assert not any(map(lives, ranks))
    saved = max(int(path.stem.rpartition("-")[2]) for path in (out / "checkpoints").glob("iteration-*.h5"))
    more = ("--iterations", saved + 10, "--resume", "auto", *SERVED, "--fc-ranks", 3 - flags[1])
    done = mpirun(5, arguments(net, out, *more))
    assert done.returncode == 0, done.stderr
    assert [record["iteration"] for record in records(out, "iteration")] == list(range(1, saved + 11))
    assert_is_of_one_rank(alone, net, out, "--dtype", "float64")


def test_ranks_that_do_not_suffice_are_told_once(mpirun, net, tmp_path):
    done = mpirun(2, arguments(net, tmp_path / "out", "--fc", "pipeline", "--fc-ranks", 2))
    assert done.returncode == 2
    assert says("--fc-ranks", "--fc", 2, "2 ranks", 3).lines(done.stderr) == 1


@pytest.mark.parametrize("case", daily(APART, "server, dedicated, stale"))
def test_ranks_that_are_apart_go_on_at_another_number(mpirun, net, tmp_path, case):
    """And stay apart: a dedicated server, one that trains, two; each run ends with equal weights on all ranks."""
    out = tmp_path / "out"
    for ranks, until in ((3, 30), (2, 60)):
        done = mpirun(ranks, arguments(net, out, "--iterations", until, *APART[case], "--resume", "auto"))
        assert done.returncode == 0, done.stderr
    end = records(out, "end")[-1]
    assert (end["iterations"], end["ranks"]) == (60, 2) and end["test_accuracy"] > 0.5
    assert len(losses(out)) == 60 and not any(record["exact"] for record in records(out, "start"))


@pytest.mark.thorough
def test_compressed_runs_go_on_at_another_number_of_ranks_and_by_another_method(mpirun, net, tmp_path):
    """Under the guard, which wants all ranks to begin their sums in one order."""
    out, more = tmp_path / "out", ("--resume", "auto", "--bucket-bytes", 2000)
    methods = (("--compress", "top-k", "--compress-ratio", 0.1), ("--compress", "powersgd", "--compress-ratio", 0.01))
    for method, ranks, until in zip(methods, (3, 2), (30, 60), strict=True):
        done = mpirun(ranks, arguments(net, out, "--iterations", until, *more, *method))
        assert done.returncode == 0, done.stderr
    begun, end = records(out, "start"), records(out, "end")[-1]
    said = [f"allreduce with {terms}, error feedback" for terms in ("top-k 10 %", "PowerSGD of rank 4")]
    assert [record["strategy"].partition(" (")[0] for record in begun] == said
    assert (end["iterations"], end["ranks"]) == (60, 2) and end["test_accuracy"] > 0.6
    assert len(losses(out)) == 60
