"""scripts/train.sbatch and bench.sbatch under a real slurmctld and slurmd: what is interrupted goes on to the same
weights as a run that is not."""

import json
import re
import sys

import pytest

from tests.says import says
from tests.slurm.conftest import TWO_RANKS

pytestmark = pytest.mark.slurm
RUN = ("--model", "net.toml", "--data", "digits", "--evaluate-every", "100000", "--algorithm", "ring", "--keep", "50")
TWO = ("-N2", "--ntasks-per-node=1", "--time=5")


def flags(iterations: int, *more) -> tuple:
    return (*RUN, "--checkpoint-every", "100000", "--iterations", iterations, *more)


def check_same(job, iterations: int) -> None:
    assert job.end() == "COMPLETED", job.log
    assert job.iterations == list(range(1, iterations + 1))
    train = ("-m", "ringtrain", "train", *flags(iterations, "--out", "whole"))
    job.slurm.call(*TWO_RANKS, sys.executable, *train)  # nobody interrupts them
    end = json.loads((job.slurm.work / "whole/log.jsonl").read_text().splitlines()[-1])
    assert job.records("end")[-1]["weights_sha256"] == end["weights_sha256"], job.log
    assert json.loads((job.folder / "outcome.json").read_text())["outcome"] == "done"


# ── stopped, queued again, gone on ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("launcher", "to"),
    [("mpirun", ["--batch"]), ("srun", ["--batch"]), ("srun", [])],
    ids=["mpirun", "srun", "srun ranks"],
)
def test_a_signal_is_a_checkpoint_and_the_job_goes_on(slurm, launcher, to):
    """Sent to the script, which hands it on; or to the ranks themselves."""
    iterations = 3000
    slurm.hold(60)
    job = slurm.submit("train.sbatch", *flags(iterations), options=TWO, RINGTRAIN_LAUNCHER=launcher)
    job.until(slurm.are_held)
    slurm.call("scancel", *to, "--signal=USR1", job.number)
    check_same(job, iterations)
    assert "stopped by SIGUSR1 after iteration" in job.log and "to be queued again" in job.log
    assert ("told to stop by USR1" in job.log) == bool(to)
    assert f"job {job.number}: start 2 on n1 n2" in job.log
    assert [record["resumed_at"] > 50 for record in job.records("start")] in ([False, True], [True])


def test_a_run_stops_before_its_time_is_up(slurm):
    """Of three minutes it takes 70 s; then it has time for all that is left."""
    iterations = 3000
    slurm.hold(60)
    options = ["-N2", "--ntasks-per-node=1", "--time=3", "--signal=B:USR1@1"]
    job = slurm.submit("train.sbatch", *flags(iterations, "--stop-before-s", 110), options=options)
    job.until(lambda: "to be queued again" in job.log)
    slurm.call("scontrol", "update", f"JobId={job.number}", "TimeLimit=30")
    check_same(job, iterations)
    assert " s before the end of the job after iteration" in job.log
    assert "note: the job ends at" in job.log and "told to stop" not in job.log


def test_slurm_signals_before_the_time_is_up(slurm):
    slurm.hold(60)
    options = ["-N2", "--ntasks-per-node=1", "--time=2", "--signal=B:USR1@60"]
    job = slurm.submit("train.sbatch", *flags(3000, "--stop-before-s", 0), options=options)
    job.until(lambda: "to be queued again" in job.log)
    assert "told to stop by USR1" in job.log and "stopped by SIGUSR1 after iteration" in job.log
    slurm.call("scancel", job.number)


def test_who_takes_the_nodes_leaves_time_for_a_checkpoint(slurm):
    iterations = 3000
    slurm.hold(60)
    job = slurm.submit("train.sbatch", *flags(iterations), options=TWO)
    job.until(slurm.are_held)
    bench = ("--end", "1K", "-n", "1", "-c", "0", "--algorithm", "ring")
    options = ["-N2", "-purgent", "--exclusive", "--time=5"]
    urgent = slurm.submit("bench.sbatch", *bench, options=options, RINGTRAIN_TUNE="no")
    assert urgent.end() == "COMPLETED", urgent.log
    check_same(job, iterations)
    assert "stopped by SIGUSR1 after iteration" in job.log and "start 2 on n1 n2" in job.log


def test_a_job_that_gets_nowhere_is_not_queued_for_ever(slurm):
    """It stops itself long before a time that is longer than it has."""
    job = slurm.submit("train.sbatch", *flags(100, "--stop-before-s", 10_000), options=TWO)
    assert job.end() == "FAILED"
    assert "no new checkpoint in 3 starts: this job gives up" in job.log
    assert job.log.count("before the first iteration") == 3 and "start 4" in job.log


# ── what ends a job ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_mistake_ends_the_job_at_once(slurm):
    job = slurm.submit("train.sbatch", "--model", "lennet", options=TWO)
    assert job.end() == "FAILED" and job.code == 2
    assert "did you mean 'lenet'?" in job.log and "start 2" not in job.log


def test_scancel_ends_the_job_and_a_checkpoint_is_left(slurm):
    slurm.hold(60)
    job = slurm.submit("train.sbatch", *flags(3000), options=TWO)
    job.until(slurm.are_held)
    slurm.call("scancel", job.number)
    assert job.end() == "CANCELLED"
    job.until(lambda: list((job.folder / "checkpoints").glob("iteration-*.h5")))
    assert "start 2" not in job.log


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_node_that_dies_is_left_out(slurm, launcher):
    iterations = 1000
    slurm.hold(450)
    arguments = (*RUN, "--checkpoint-every", 200, "--iterations", iterations)
    job = slurm.submit(
        "train.sbatch", *arguments, options=[*TWO, "--no-kill"], RINGTRAIN_LAUNCHER=launcher, RINGTRAIN_PROBE_S="8"
    )
    job.until(slurm.are_held)
    slurm.kill_node("n2")
    slurm.let_go()
    assert job.end() == "COMPLETED", job.log
    assert "lost n2: 1 of 2 nodes are left" in job.log and "starting again on n1" in job.log
    assert job.iterations == list(range(1, iterations + 1))
    starts = job.records("start")
    assert starts[-1]["resumed_at"] >= 400 and starts[-1]["ranks"] == 1


# ── ranks and devices ─────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_job_that_asks_for_gpus_has_a_rank_for_each(slurm, launcher):
    options = ["-N2", "--gpus-per-node=2", "--time=5"]
    job = slurm.submit("train.sbatch", *flags(20), options=options, RINGTRAIN_LAUNCHER=launcher)
    assert job.end() == "COMPLETED", job.log
    assert job.records("start")[0]["ranks"] == 4


def test_ranks_that_find_themselves_alone_are_told_what_to_do(slurm):
    job = slurm.submit("train.sbatch", *flags(20), options=TWO, RINGTRAIN_LAUNCHER="srun", RINGTRAIN_SRUN_MPI="none")
    assert job.end() == "FAILED" and job.code in (2, 143)  # srun ends the other rank, which may not have come so far
    assert re.search(says("--mpi"), job.log)


def test_the_bench_leaves_its_results(slurm):
    job = slurm.submit("bench.sbatch", "--end", "4K", "--algorithm", "ring,tree", options=TWO, RINGTRAIN_TUNE="no")
    assert job.end() == "COMPLETED", job.log
    folder = slurm.work / "bench" / f"ringtrain-bench-{job.number}"
    names = "allreduce.csv allreduce.json allreduce.txt doctor.txt job.txt"
    assert sorted(path.name for path in folder.iterdir()) == names.split()
    assert json.loads((folder / "allreduce.json").read_text())


def test_a_script_that_is_written_is_one_that_runs(slurm):
    options = ["--nodes", "2", "--ranks-per-node", "1", "--time", "5", "--name", "own", "--output", "own.sbatch"]
    written = slurm.call("ringtrain", "slurm", *options, "--", *flags(20))
    assert written == "own.sbatch is written: submit it with sbatch own.sbatch\n"
    number = slurm.call("sbatch", "--parsable", "own.sbatch").strip()
    job = slurm.submit("bench.sbatch", options=["--hold", "-N1"])  # to look at the other by
    job.until(lambda: (slurm.work / f"runs/own-{number}/outcome.json").exists())
    job.until(lambda: '"done"' in (slurm.work / f"runs/own-{number}/outcome.json").read_text())
