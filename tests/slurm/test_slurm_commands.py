"""Scripts of `ringtrain slurm run` under a real slurmctld and slurmd: a command of ranks is told to stop, queued again,
and started without a dead node."""

import sys

import pytest

from tests.slurm.conftest import ROOT, TWO_RANKS

pytestmark = pytest.mark.slurm
BOTH = pytest.mark.parametrize("launcher", ["mpirun", "srun"])
PROGRAMS = ROOT / "tests" / "mpi" / "programs" / "pytorch"
SAVES = PROGRAMS / "saves.py"
SCRIPTS = {"torch": [SAVES], **{each: [PROGRAMS / "stops.py", each] for each in ("lightning.pytorch", "transformers")}}
TORCH = (sys.executable, "-W", "ignore", "-m", "ringtrain.torch")
# Each command runs for a second at least: mpirun of Open MPI 5.0.11 may wait for ever for a process of another node
# that ends within milliseconds of its start. It is repaired by https://github.com/openpmix/prrte/commit/78df6ec2b9.
BRIEF = "sleep 1; "
# The first start, on both ranks, ignores what it is told; the next one ends at once.
DEAF = f"{BRIEF}trap '' USR1; [ -e begun ] && exit; sleep 20; touch begun; sleep 600"


def steps(slurm) -> list[int]:
    return [int(line) for line in (slurm.work / "steps").read_text().split()]


@BOTH
@pytest.mark.parametrize("library", SCRIPTS)
def test_a_script_of_pytorch_saves_and_goes_on(slurm, launcher, library):
    pytest.importorskip(library)
    slurm.hold(30)
    script = slurm.write("run", "--launcher", launcher, "--", *TORCH, *SCRIPTS[library], 50)
    job = slurm.submit(script)
    job.until(slurm.are_held)
    slurm.call("scancel", "--batch", "--signal=USR1", job.number)
    assert job.end() == "COMPLETED", job.log
    assert "told to stop by USR1" in job.log and "ended with status 75" in job.log and "to be queued again" in job.log
    assert f"job {job.number}: start 2 on n1 n2" in job.log and "from step 31 on 2 ranks" in job.log
    assert steps(slurm) == list(range(50))
    (slurm.work / "whole").mkdir()
    slurm.call(*TWO_RANKS, "--wdir", slurm.work / "whole", *TORCH, *SCRIPTS[library], 50)  # nobody interrupts them
    assert (slurm.work / "weights").read_text() == (slurm.work / "whole" / "weights").read_text()


@BOTH
def test_a_script_of_pytorch_goes_on_without_a_dead_node(slurm, launcher):
    pytest.importorskip("torch")
    slurm.hold(30)
    script = slurm.write("run", "--launcher", launcher, "--", *TORCH, "--deadline-s", 20, SAVES, 50)
    job = slurm.submit(script, RINGTRAIN_PROBE_S="8")
    job.until(slurm.are_held)
    slurm.kill_node("n2")
    slurm.let_go()
    assert job.end() == "COMPLETED", job.log
    assert "lost n2: 1 of 2 nodes are left" in job.log and "starting again on n1" in job.log
    assert "from step 20 on 1 ranks" in job.log and steps(slurm)[-1] == 49


@BOTH
def test_a_command_that_runs_on_is_queued_again_before_the_limit(slurm, launcher):
    script = slurm.write("run", "--time", 2, "--launcher", launcher, "--", "bash", "-c", DEAF)
    job = slurm.submit(script, options=["--signal=B:USR1@60"], RINGTRAIN_LAST_S="40")
    assert job.end() == "COMPLETED", job.log
    assert "told to stop by USR1" in job.log and "still running 40 s before the limit" in job.log
    assert "start 2 on n1 n2" in job.log


@BOTH
def test_a_command_that_cannot_be_told_dies_of_the_signal_and_is_queued_again(slurm, launcher):
    sleeps = f"{BRIEF}[ -e began ] && exit; sleep 3; touch began; exec sleep 600"
    job = slurm.submit(slurm.write("run", "--launcher", launcher, "--", "bash", "-c", sleeps))
    job.until((slurm.work / "began").exists)
    slurm.call("scancel", "--batch", "--signal=USR1", job.number)
    assert job.end() == "COMPLETED", job.log
    assert "start 2 on n1 n2" in job.log


@BOTH
def test_ranks_that_save_one_after_another_all_end_with_75(slurm, launcher):
    """The second one takes two seconds longer: the first must not cost it its checkpoint, where the launcher waits."""
    saves = "trap 'kill $!; sleep $((2 * RANK)); touch saved$RANK; exit 75' USR1; touch held-by-$RANK; sleep 600 & wait"
    begins = BRIEF + "RANK=${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}; [ -e saved0 ] && exit; "
    job = slurm.submit(slurm.write("run", "--launcher", launcher, "--", "bash", "-c", begins + saves))
    job.until(slurm.are_held)
    slurm.call("scancel", "--batch", "--signal=USR1", job.number)
    assert job.end() == "COMPLETED" and "ended with status 75" in job.log, job.log
    assert launcher == "mpirun" or (slurm.work / "saved1").exists()


@BOTH
def test_a_command_that_fails_ends_the_job_with_its_code(slurm, launcher):
    job = slurm.submit(slurm.write("run", "--launcher", launcher, "--", "bash", "-c", f"{BRIEF}exit 3"))
    assert job.end() == "FAILED" and job.code == 3 and "start 2" not in job.log, job.log


def test_a_command_that_gets_nowhere_is_not_queued_for_ever(slurm):
    """Nor with 75, unless a new file shows that it got somewhere."""
    job = slurm.submit(slurm.write("run", "--", "bash", "-c", f"{BRIEF}exit 75"))
    assert job.end() == "FAILED", job.log
    assert "no new checkpoint in 3 starts: this job gives up; it looked in no folder" in job.log
    counts = BRIEF + 'echo >>mine/file$SLURM_RESTART_COUNT; [ "$SLURM_RESTART_COUNT" = 4 ] || exit 75'
    (slurm.work / "mine").mkdir()
    job = slurm.submit(slurm.write("run", "--", "bash", "-c", counts), RINGTRAIN_CHECKPOINTS="mine/file*")
    assert job.end() == "COMPLETED" and "start 5" in job.log, job.log
