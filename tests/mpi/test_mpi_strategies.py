"""Every strategy beside all-reduce under real mpirun: a run, its continuation at another number of ranks, a death."""

import json
import os
import signal

import pytest
from test_mpi_train import EPOCHS, arguments, lives, losses, ranks_of, read_until, records

from tests.mpi.conftest import NET, PATIENCE_S
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
    "averaging, asynchronous": ("--sync", "averaging", "--asynchronous", "--average-every", 3, "--servers", 2),
    "averaging, quorum": (
        "--sync",
        "averaging",
        "--quorum",
        2,
        "--grace-s",
        0.001,
        "--average-every",
        3,
        "--servers",
        2,
    ),
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


DOUBLE = ("--dtype", "float64")
PIPELINE = ("--fc", "pipeline", "--accumulate", 3)


@pytest.fixture
def train(mpirun, net, tmp_path):
    """train(ranks, flags) → the run folder"""

    def start(ranks, *flags, out=tmp_path / "out"):
        done = mpirun(ranks, arguments(net, out, *flags))
        assert done.returncode == 0, done.stderr
        return out

    return start


@pytest.fixture
def continued(train):
    """continued(flags, ranks and flags of each part) → the run folder of 30 iterations, and 30 more"""

    def start(*flags, parts=((3, ()), (2, ()))):
        for until, (ranks, more) in zip((30, 60), parts, strict=True):
            out = train(ranks, *flags, *more, "--iterations", until, "--resume", "auto")
        end = records(out, "end")[-1]
        assert (end["iterations"], end["ranks"]) == (60, ranks) and len(losses(out)) == 60
        return out

    return start


def accuracy(out):
    return records(out, "end")[-1]["test_accuracy"]


def assert_is_of_one_rank(alone, net, out, *flags):
    """The same losses and the same accuracy after as many iterations by one rank."""
    one, wanted = out.with_name("one"), losses(out)
    done = alone(arguments(net, one, "--iterations", len(wanted), *DOUBLE, *flags))
    assert done.returncode == 0, done.stderr
    assert losses(one) == pytest.approx(wanted, rel=1e-9) and accuracy(one) == accuracy(out)


@pytest.mark.parametrize("sync", daily(STRATEGIES, "sharded", "server"))
def test_a_run_and_its_continuation_at_another_number_of_ranks(continued, alone, net, sync):
    out = continued("--sync", sync, *STRATEGIES[sync], *DOUBLE)
    begun = records(out, "start")
    assert all(record["strategy"].startswith(sync) and record["exact"] == (sync in EXACT) for record in begun)
    if sync in ONE_RANK:
        assert_is_of_one_rank(alone, net, out, *ONE_RANK[sync])
    else:
        assert accuracy(out) > 0.65


def test_a_pipeline_and_its_continuation_at_another_number_of_ranks(continued, alone, net):
    net.write_text(TWO_FC)
    out = continued(*PIPELINE, *DOUBLE, parts=((4, ("--fc-ranks", 2)), (3, ("--fc-ranks", 1))))
    for fc_ranks, record in zip((2, 1), records(out, "start"), strict=True):
        assert record["exact"] is True and f"2 + {fc_ranks} ranks" in record["strategy"]
    assert_is_of_one_rank(alone, net, out)
    notes = [record["text"] for record in records(out, "note")]
    assert any(text.startswith("ranks 0, 1: conv to drop, ") for text in notes)
    assert sum(text.startswith(("rank 2: fc1", "rank 3: fc")) for text in notes) == 3


@pytest.mark.thorough
def test_overlap_changes_times_and_nothing_else_on_real_ranks(train, tmp_path):
    """In memory that ranks share, and over messages; buckets of a layer each."""
    fixed = ("--iterations", 30, *DOUBLE, "--evaluate-every", 10, "--bucket-bytes", 64)
    for name, more in (
        ("backward", ()),
        ("forward", ("--overlap", "forward")),
        ("messages", ("--overlap", "forward", "--algorithm", "ring")),
    ):
        out = train(3, *fixed, *more, out=tmp_path / name)
        (exchanged,) = records(out, "exchange")
        assert len(exchanged["buckets"]) == 4 and all(bucket["total_s"] > 0 for bucket in exchanged["buckets"])
        assert losses(out) == pytest.approx(losses(tmp_path / "backward"), rel=1e-12)


@pytest.mark.thorough
def test_norms_and_statistics_of_the_whole_are_those_of_one_rank(train, alone, net):
    """Kernels are rehearsed in turns; sums of layers run beside those of gradients and of the loss."""
    net.write_text(NET.replace('{ name = "relu"', '{ name = "norm", kind = "BatchNorm" },\n  { name = "relu"'))
    flags = ("--batch-norm", "sync", "--sync", "sharded", "--lr", 0.5, "--warmup", 10)
    flags = (*flags, "--optimizer", "lars", "--trust-coefficient", 0.05)
    assert_is_of_one_rank(alone, net, train(3, "--iterations", 20, *DOUBLE, *flags), *flags)


# The rank that is killed, and flags.
KILLED = {
    "allreduce, the first": (0, ()),
    "allreduce, the last": (2, ()),
    **{sync: (1, ("--sync", sync, *more)) for sync, more in STRATEGIES.items()},
    "pipeline, in front": (1, PIPELINE),
    "pipeline, fully connected": (2, PIPELINE),
    **{case: (2, flags) for case, flags in APART.items()},
}


@pytest.fixture
def killed(mpirun_process, net, tmp_path):
    """killed(ranks, the one that is killed, flags) → (the run folder, the exit code, the output), once all are gone"""

    def start(ranks, victim, *flags):
        process = mpirun_process(ranks, arguments(net, tmp_path / "out", "--epochs", EPOCHS, *flags))
        read_until(process, f" 2/{EPOCHS}")
        pids = ranks_of(process)
        os.kill(pids[victim], signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0 and not any(map(lives, pids))
        return tmp_path / "out", process.returncode, output

    return start


@pytest.mark.timing
@pytest.mark.parametrize("case", daily(KILLED, "allreduce, the first", "server, asynchronous"))
def test_a_killed_rank_ends_all_and_the_checkpoint_is_good(killed, alone, case):
    victim, flags = KILLED[case]
    out, _, _ = killed(3, victim, "--checkpoint-every", 3, *flags)
    done = alone(["-m", "ringtrain", "evaluate", str(out), "--json"])
    assert done.returncode == 0, done.stderr
    assert case in APART or json.loads(done.stdout)["iteration"] >= 24


@pytest.mark.timing
@pytest.mark.parametrize(("victim", "fc_ranks"), thorough((0, 1), (3, 1), (2, 2)))
def test_a_pipeline_that_lost_a_rank_goes_on_at_other_numbers(killed, train, alone, net, victim, fc_ranks):
    """From its newest checkpoint, as if nobody had died."""
    flags = (*PIPELINE, *DOUBLE)
    out, code, output = killed(4, victim, "--checkpoint-every", 7, *flags, "--fc-ranks", fc_ranks)
    assert code == 137 and f"rank {victim} " in output, output
    saved = max(int(path.stem.rpartition("-")[2]) for path in (out / "checkpoints").glob("iteration-*.h5"))
    train(5, "--iterations", saved + 10, "--resume", "auto", *flags, "--fc-ranks", 3 - fc_ranks)
    assert [record["iteration"] for record in records(out, "iteration")] == list(range(1, saved + 11))
    assert_is_of_one_rank(alone, net, out)


def test_ranks_that_do_not_suffice_are_told_once(mpirun, net, tmp_path):
    done = mpirun(2, arguments(net, tmp_path / "out", "--fc", "pipeline", "--fc-ranks", 2))
    assert done.returncode == 2
    assert says("--fc-ranks", "--fc", 2, "2 ranks", 3).lines(done.stderr) == 1


@pytest.mark.parametrize("case", daily(APART, "server, dedicated, stale"))
def test_ranks_that_are_apart_go_on_at_another_number(continued, case):
    """And stay apart: a dedicated server, one that trains, two; each run ends with equal weights on all ranks."""
    out = continued(*APART[case])
    assert accuracy(out) > 0.5 and not any(record["exact"] for record in records(out, "start"))


@pytest.mark.thorough
def test_compressed_runs_go_on_at_another_number_of_ranks_and_by_another_method(continued):
    """Under the guard, which wants all ranks to begin their sums in one order."""
    methods = (("--compress", "top-k", "--compress-ratio", 0.1), ("--compress", "powersgd", "--compress-ratio", 0.01))
    out = continued("--bucket-bytes", 2000, parts=zip((3, 2), methods, strict=True))
    said = [f"allreduce with {terms}, error feedback" for terms in ("top-k 10 %", "PowerSGD of rank 4")]
    assert [record["strategy"].partition(" (")[0] for record in records(out, "start")] == said
    assert accuracy(out) > 0.6
