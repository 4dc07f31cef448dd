"""The batch scripts, run by bash with commands in place of Slurm's and MPI's that note what they are told. (tests/slurm
has the real ones.)"""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringtrain.launch.slurm.script import NAMES, BatchJob, script

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
SUBMITTED = ("train", "bench")  # kinds of which scripts/ has one to submit as it is

# What a start of `mpirun` does is the line of its number in the file `plan`: an outcome, a status, a checkpoint. The
# status `wait` is 75 after USR1, `wait2` is 2 then, and `deaf` heeds no USR1.
MPIRUN = """#!/bin/bash
[ "$1" != --version ] || { echo "mpirun (${MPIRUN_KIND:-Open MPI}) 5.0.8"; exit; }
echo "mpirun $*${SLURM_OVERLAP:+ OVERLAP}" >>"$NOTES"
n=$(grep -c '^mpirun' "$NOTES"); read -r outcome status checkpoint <<<"$(sed -n "${n}p" "$PLAN")"
if [ -n "$checkpoint" ]; then
    mkdir -p "$RUN/checkpoints"
    : >"$RUN/checkpoints/iteration-$(printf %08d "$checkpoint").h5"
fi
[ "$outcome" = - ] || printf '{"outcome": "%s", "exit_code": %s}' "$outcome" "$status" >"$RUN/outcome.json"
until [ -z "$SLEEPS" ] || [ -e "$SLEEPS" ]; do sleep 0.02; done
case "$status" in
    wait*) code="${status#wait}"; trap 'echo "told USR1" >>"$NOTES"; exit ${code:-75}' USR1 ;;
    deaf) trap '' USR1; : >"$RUNS" ;;
esac
case "$status" in wait* | deaf | dies) echo ready; while :; do sleep 0.02; done ;; esac
exit "${status:-0}"
"""
SRUN = """#!/bin/bash
if [ -n "$TOLD_PROBING" ] && [[ "$*" = *"--overlap"*"--nodelist=n1 "* ]]; then
    kill -"$TOLD_PROBING" "$JOB"
    sleep 0.1  # a wait for this would be ended by the signal
fi
case "$*" in
    *"--overlap"*"--nodelist=$LOST "*) exit 1 ;;
    *"--overlap"*) exit ;;
esac
echo "srun $*" >>"$NOTES"
exec mpirun as srun
"""
SBCAST = """#!/bin/sh
echo "sbcast $*" >>"$NOTES"
[ -n "$2" ] && [ "$2" != none.h5 ]
"""
SQUEUE = """#!/bin/sh
[ -z "$TOLD_EARLY" ] || kill -USR1 "$JOB"
[ -e "$RUNS" ] && echo "${END_OF_DEAF}" || echo 2100-03-01T12:00:00
"""
# Who sleeps until the end of the job wakes as soon as a deaf command runs. With SLEEPS, it heeds no TERM and makes that
# file, for which the command waits.
SLEEP = """#!/bin/bash
[ "${1%.*}" -gt 1000000 ] || exec /bin/sleep "$@"
[ -z "$SLEEPS" ] || { trap '' TERM; : >"$SLEEPS"; }
until [ -e "$RUNS" ]; do /bin/sleep 0.02; done
"""
RINGTRAIN = f"""#!/bin/sh
[ "$1" != slurm ] || exec {sys.executable} -m ringtrain "$@"
"""
SCONTROL = """#!/bin/bash
case "$1" in
    show) [ "$2" != hostnames ] || tr , '\\n' <<<"$3" ;;
    requeue) echo "requeue $2" >>"$NOTES"; exit "${REQUEUE_STATUS:-0}" ;;
esac
"""


@dataclass
class Ran:
    code: int
    out: str
    notes: list[str] = field(default_factory=list)


@pytest.fixture
def job(tmp_path):
    """job(kind, plan lines, flags, NAME=value...) → Ran: one start of a script, in a folder that is kept."""
    bin = tmp_path / "bin"
    bin.mkdir()
    commands = {
        "mpirun": MPIRUN,
        "srun": SRUN,
        "sbcast": SBCAST,
        "scontrol": SCONTROL,
        "squeue": SQUEUE,
        "sleep": SLEEP,
    }
    for name, text in {**commands, "ringtrain": RINGTRAIN, "apptainer": "#!/bin/sh\n"}.items():
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)

    def start(kind="train", plan=("done 0",), flags=(), told=None, path=None, **environ) -> Ran:
        notes, planned = tmp_path / "notes", tmp_path / "plan"
        notes.write_text("")
        planned.write_text("\n".join(plan) + "\n")
        clean = {
            key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "RINGTRAIN_", "OMP_"))
        }
        given = {
            **clean,
            "PATH": f"{bin}{os.pathsep}{clean['PATH']}",
            "NOTES": str(notes),
            "PLAN": str(planned),
            "RUNS": str(tmp_path / "runs_deaf"),
            "RUN": str(tmp_path / environ.pop("RUN", "runs/ringtrain-9")),
            "SLURM_JOB_ID": "9",
            "SLURM_JOB_NAME": "ringtrain",
            "SLURM_JOB_NODELIST": "n1,n2",
            "SLURM_NTASKS": "4",
            "SLURM_TASKS_PER_NODE": "2(x2)",
            "LOST": "none",
            **environ,
        }
        if path is None:
            path = tmp_path / f"{kind}.sbatch"
            path.write_text(script(BatchJob(kind=kind)))
        command = ["bash", "-c", 'JOB=$$ exec bash "$0" "$@"', str(path), *flags]
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # a shell cannot trap what it was started to ignore
        process = subprocess.Popen(command, cwd=tmp_path, env=given, stdout=-1, stderr=-2, text=True)
        try:
            seen = []
            if told:
                for line in process.stdout:
                    seen.append(line)
                    if line == "ready\n":
                        process.send_signal(told)
                        break
            out = "".join(seen) + process.communicate(timeout=60)[0]
        finally:
            process.kill()
        return Ran(process.returncode, out, notes.read_text().splitlines())

    return start


# ── one text ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def directives(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize("kind", SUBMITTED)
def test_the_scripts_ask_sbatch_for_the_same_as_those_that_ringtrain_slurm_writes(kind):
    path = ROOT / "scripts" / f"{kind}.sbatch"
    assert directives(path.read_text()) == directives(script(BatchJob(kind=kind)))
    assert os.access(path, os.X_OK)


@pytest.mark.parametrize("name", [*NAMES, "slurm-cluster"])
def test_the_scripts_are_sound(name, tmp_path):
    paths = [ROOT / "scripts" / (f"{name}.sbatch" if name in SUBMITTED else name)]
    if name in NAMES:
        (tmp_path / name).write_text(script(BatchJob(kind=name)))
        paths = [*filter(Path.exists, paths), tmp_path / name]
    checker = ["shellcheck"] if shutil.which("shellcheck") else ["bash", "-n"]
    for path in paths:
        done = subprocess.run([*checker, path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", SUBMITTED)
def test_the_scripts_run_the_commands_that_ringtrain_slurm_writes(job, kind):
    done = job(kind=kind, path=ROOT / "scripts" / f"{kind}.sbatch", flags=["--end", "1K"], plan=["done 0"] * 3)
    assert done.code == 0 and " ".join(done.notes).count(" --end 1K") == 1


@pytest.mark.parametrize("kind", SUBMITTED)
def test_a_script_without_ringtrain_names_the_places_where_it_looked(job, kind, tmp_path):
    ran = job(path=ROOT / "scripts" / f"{kind}.sbatch", PATH="/usr/bin:/bin")
    assert ran.code == 2 and f"no ringtrain in RINGTRAIN_VENV, in {tmp_path}/.venv or on PATH" in ran.out


@pytest.mark.parametrize("kind", SUBMITTED)
def test_a_script_starts_the_ringtrain_of_an_environment_by_its_whole_path(job, kind, tmp_path):
    (tmp_path / ".venv").symlink_to(tmp_path)
    ran = job(kind=kind, path=ROOT / "scripts" / f"{kind}.sbatch", plan=["done 0"] * 3)
    assert ran.code == 0 and f" {tmp_path}/.venv/bin/ringtrain " in ran.notes[0]


def test_it_is_a_job(job):
    ran = job(SLURM_JOB_ID="")
    assert ran.code == 2 and "this is a job for Slurm: submit it, as sbatch" in ran.out


# ── what is started ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_ranks_are_those_of_the_allocation(job, tmp_path):
    ran = job(flags=["--model", "lenet"])
    assert ran.code == 0
    program = tmp_path / "bin" / "ringtrain"
    given = "train --model lenet --out runs/ringtrain-9 --resume auto"
    assert ran.notes == [f"mpirun --host n1:2,n2:2 -np 4 {program} {given}"]


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"SLURM_TASKS_PER_NODE": "3,1", "SLURM_CPUS_PER_TASK": "6"}, "--host n1:3,n2:1 -np 4 --map-by slot:PE=6 "),
        (
            {"SLURM_NTASKS": "", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "4"},
            "--host n1:4,n2:4 -np 8 --map-by :OVERSUBSCRIBE --bind-to none ",
        ),
        (
            {"RINGTRAIN_RANKS_PER_NODE": "3", "RINGTRAIN_MAPPING": "--map-by core"},
            "--host n1:3,n2:3 -np 6 --map-by core ",
        ),
        ({"RINGTRAIN_LAUNCHER_FLAGS": "--with-ft ulfm"}, "--host n1:2,n2:2 -np 4 --with-ft ulfm "),
    ],
)
def test_how_many_where_and_on_which_cores(job, environ, told):
    (note,) = job(**environ).notes
    assert note.startswith(f"mpirun {told}/")


def test_srun_is_told_the_same(job):
    notes = job(RINGTRAIN_LAUNCHER="srun", RINGTRAIN_SRUN_MPI="pmi2", SLURM_CPUS_PER_TASK="6").notes
    told = (
        "--mpi=pmi2 --kill-on-bad-exit=1 --nodes=2 --ntasks=4 --nodelist=n1,n2 --ntasks-per-node=2 --cpus-per-task=6 /"
    )
    assert notes[0].startswith(f"srun {told}")


def test_mpich_has_other_flags(job, tmp_path):
    (note,) = job(MPIRUN_KIND="HYDRA").notes
    assert note.startswith("mpirun -machinefile runs/ringtrain-9/hosts.9 -n 4 /")
    assert (tmp_path / "runs/ringtrain-9/hosts.9").read_text() == "n1:2\nn2:2\n"


def test_a_container_is_run_by_each_rank(job, tmp_path):
    (tmp_path / "image.sif").write_text("")
    given = {"RINGTRAIN_CONTAINER": "image.sif", "RINGTRAIN_CONTAINER_FLAGS": "--bind /scratch"}
    (note,) = job(**given).notes
    assert f" {tmp_path}/bin/apptainer exec --bind /scratch image.sif ringtrain train --out " in note
    (note,) = job(**given, SLURM_GPUS_ON_NODE="2").notes
    assert " exec --bind /scratch --nv image.sif ringtrain train " in note
    ran = job(RINGTRAIN_CONTAINER="none.sif")
    assert ran.code == 2 and "there is no image none.sif (from " in ran.out


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"RINGTRAIN_VENV": "none"}, "there is no virtual environment none (from "),
        ({"RINGTRAIN_LAUNCHER": "mprun"}, "launcher is 'mprun'; it wants auto, mpirun or srun"),
    ],
)
def test_what_cannot_be_found_ends_the_job(job, environ, told):
    ran = job(**environ)
    assert ran.code == 2 and told in ran.out and ran.notes == []


def test_the_run_folder_may_be_named_by_flags(job, tmp_path):
    for number, flags in enumerate((["--out", "own"], ["--out=own"], ["-o", "own"], ["-oown"])):
        (note,) = job(flags=flags, RUN="own", SLURM_JOB_ID=str(number)).notes
        assert note.endswith(f" train {' '.join(flags)} --resume auto")
    (note,) = job(SLURM_ARRAY_JOB_ID="4", SLURM_ARRAY_TASK_ID="2", RUN="runs/ringtrain-4-2").notes
    assert note.endswith(" train --out runs/ringtrain-4-2 --resume auto")


@pytest.mark.parametrize("flags", [["--data", "a/b.h5"], ["--data=a/b.h5"], ["--data", "c.h5", "--data=a/b.h5"]])
def test_the_data_set_is_copied_to_each_node_where_that_is_asked_for(job, flags):
    copied, started = job(flags=flags, RINGTRAIN_STAGE="/scratch").notes
    assert copied == "sbcast --force a/b.h5 /scratch/9-b.h5"
    assert started.endswith(f" train {' '.join(flags)} --out runs/ringtrain-9 --data /scratch/9-b.h5 --resume auto")


@pytest.mark.parametrize(("flags", "data"), [(["--data", "none.h5"], "none.h5"), (["--model", "lenet"], "")])
def test_a_data_set_that_cannot_be_copied_ends_the_job(job, flags, data):
    ran = job(flags=flags, RINGTRAIN_STAGE="/scratch")
    assert ran.code == 2 and [note.split()[0] for note in ran.notes] == ["sbcast"]
    assert f"stage: --data '{data}' cannot be copied to /scratch/9-{data} on each node" in ran.out


def test_a_run_that_begins_at_a_checkpoint_goes_on_from_its_own(job):
    ran = job(plan=["stalled 4", "running 1 5", "done 0"], flags=["--resume", "other.h5", "--out", "own"], RUN="own")
    assert [note.endswith("--resume other.h5 --out own") for note in ran.notes] == [True, True, False]
    assert ran.notes[2].endswith("--resume other.h5 --out own --resume auto")


def test_its_first_checkpoint_may_have_one_of_its_names_alone(job, tmp_path):
    """It was killed between writing the best one and calling it by its number, too."""
    (tmp_path / "own" / "checkpoints").mkdir(parents=True)
    (tmp_path / "own" / "checkpoints" / "best.h5").touch()
    (note,) = job(flags=["--resume", "other.h5", "--out", "own"], RUN="own").notes
    assert note.endswith("--resume other.h5 --out own --resume auto")


# ── what comes of a start ─────────────────────────────────────────────────────────────────────────────────────────────
def test_an_interrupted_run_is_queued_again(job):
    ran = job(plan=["interrupted 75 40"])
    assert ran.code == 75 and ran.notes[1:] == ["requeue 9"]
    assert "ended as interrupted, status 75; newest checkpoint: 40" in ran.out and "to be queued again" in ran.out


@pytest.mark.parametrize(
    ("environ", "notes", "told"),
    [
        ({"RINGTRAIN_REQUEUE": "no"}, [], ""),
        ({"RINGTRAIN_REQUEUE": "exit"}, [], ""),
        (
            {"REQUEUE_STATUS": "1"},
            ["requeue 9"],
            "scontrol requeue failed: go on with sbatch and --out runs/ringtrain-9",
        ),
    ],
)
def test_other_ways_to_be_queued_again(job, environ, notes, told):
    ran = job(plan=["interrupted 75 40"], **environ)
    assert ran.code == 75 and ran.notes[1:] == notes and told in ran.out


@pytest.mark.parametrize(("plan", "code"), [("usage 2", 2), ("diverged 3", 3), ("failed 1", 1), ("- 2", 2), ("- 0", 1)])
def test_what_will_not_be_better_the_next_time_ends_the_job(job, plan, code):
    ran = job(plan=[plan])
    assert ran.code == code and len(ran.notes) == 1


def test_one_stopped_before_it_had_a_folder_is_queued_again(job):
    assert job(plan=["- 75"]).notes[1:] == ["requeue 9"]


def test_an_outcome_of_an_earlier_start_does_not_count(job):
    assert job(plan=["done 0"]).code == 0
    assert job(plan=["- 2"]).code == 2


def test_an_outcome_of_a_run_that_is_at_work_is_left_to_it(job, tmp_path):
    """A second job with its folder ends with what it is told, and the first one's script finds how its own ended."""
    theirs = tmp_path / "own" / "outcome.json"
    theirs.parent.mkdir()
    theirs.write_text('{"outcome": "running", "exit_code": null}')
    ran = job(plan=["- 2"], flags=["--out", "own"], RUN="own")
    assert ran.code == 2 and "ended as not begun, status 2" in ran.out
    assert theirs.read_text() == '{"outcome": "running", "exit_code": null}'


def test_starts_without_a_new_checkpoint_are_few(job):
    """Over several starts of the job, and of its ranks."""
    assert job(plan=["running 137", "interrupted 75"]).code == 75
    ran = job(plan=["running 137", "running 137"], SLURM_RESTART_COUNT="1")
    assert ran.code == 1 and len(ran.notes) == 1 and "start 2 on n1 n2" in ran.out
    assert "no new checkpoint in 3 starts: this job gives up" in ran.out
    assert job(plan=["done 0"], SLURM_JOB_ID="10", RUN="runs/ringtrain-10").code == 0


def test_a_new_checkpoint_counts_anew(job):
    plan = ["running 137 20", "running 137", "running 0 30", "running 137", "running 137", "done 0"]
    assert job(plan=plan).code == 0


def test_a_lost_node_is_left_out(job):
    ran = job(plan=["failed 1 30", "done 0"], LOST="n2")
    assert ran.code == 0 and ran.notes[1].startswith("mpirun --host n1:2 -np 2 ")
    assert [note.endswith("OVERLAP") for note in ran.notes] == [False, True]
    assert "lost n2: 1 of 2 nodes are left" in ran.out and "starting again on n1" in ran.out


def test_mpirun_may_end_with_0_when_a_node_died(job):
    ran = job(plan=["running 0 30", "done 0"], LOST="n1")
    assert ran.code == 0 and ran.notes[1].startswith("mpirun --host n2:2 -np 2 ")


def test_too_few_nodes_are_waited_for(job):
    ran = job(plan=["running 0 30"], LOST="n2", RINGTRAIN_MIN_NODES="2")
    assert ran.code == 75 and ran.notes[1:] == ["requeue 9"]


# ── signals ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_signal_is_handed_on_and_waited_for(job):
    ran = job(plan=["- wait"], told=signal.SIGUSR1)
    assert ran.code == 75 and ran.notes[1:] == ["told USR1", "requeue 9"]
    assert "told to stop by USR1: the ranks are told" in ran.out and "status 75; newest checkpoint: none" in ran.out


def test_what_slurm_ends_is_not_queued_again_by_the_script(job):
    ran = job(plan=["- wait"], told=signal.SIGTERM)
    assert ran.code == 75 and ran.notes[1:] == ["told USR1"]
    assert "Slurm ends the job: it is queued again only if Slurm does that" in ran.out


def test_a_signal_that_comes_before_there_are_ranks_is_heeded(job):
    ran = job(plan=["- wait"], TOLD_EARLY="1")
    assert ran.code == 75 and ran.notes == ["requeue 9"]


@pytest.mark.parametrize("plan", ["stalled 4", "failed 1"])
@pytest.mark.parametrize(("told", "notes"), [("USR1", ["requeue 9"]), ("TERM", [])])
def test_a_signal_while_nodes_are_asked_costs_none_of_them(job, plan, told, notes):
    ran = job(plan=[plan, "done 0"], TOLD_PROBING=told)
    assert ran.code == 75 and ran.notes[1:] == notes
    assert "told to stop by" in ran.out and "lost " not in ran.out


# ── any command ───────────────────────────────────────────────────────────────────────────────────────────────────────
COMMAND = ("sh", "-c", "a command")


def test_a_command_is_started_as_it_is(job, tmp_path):
    (tmp_path / "image.sif").write_text("")
    sh = shutil.which("sh")
    assert job("run", plan=["- 0"], flags=COMMAND).notes == [f"mpirun --host n1:2,n2:2 -np 4 {sh} -c a command"]
    note = job("run", plan=["- 0"], flags=COMMAND, RINGTRAIN_LAUNCHER="srun").notes[0]
    assert note.startswith("srun --mpi=pmix --kill-on-bad-exit=0 --wait=30 --nodes=2 ")
    (note,) = job("run", plan=["- 0"], flags=COMMAND, RINGTRAIN_CONTAINER="image.sif").notes
    assert note.endswith("apptainer exec image.sif sh -c a command")


@pytest.mark.parametrize(("flags", "told"), [((), "no command: set flags"), (("farprogram",), "no farprogram found")])
def test_a_command_that_is_not_there_ends_the_job(job, flags, told):
    ran = job("run", flags=flags)
    assert ran.code == 2 and told in ran.out and ran.notes == []


@pytest.mark.parametrize(
    ("plan", "told", "code", "notes"),
    [
        ("- 0", None, 0, []),
        ("- 3", None, 3, []),
        ("- 137", None, 137, []),
        ("- 75", None, 75, ["requeue 9"]),
        ("- wait", signal.SIGUSR1, 75, ["told USR1", "requeue 9"]),
        ("- wait0", signal.SIGUSR1, 0, ["told USR1"]),
        ("- wait2", signal.SIGUSR1, 2, ["told USR1"]),
        ("- dies", signal.SIGUSR1, 75, ["requeue 9"]),
        ("- wait", signal.SIGTERM, 75, ["told USR1"]),
    ],
)
def test_the_end_of_a_command_decides(job, plan, told, code, notes):
    ran = job("run", plan=[plan], flags=COMMAND, told=told)
    assert (ran.code, ran.notes[1:]) == (code, notes), ran.out


@pytest.mark.parametrize("plan", ["- 0", "- 1", "- 4"])
def test_a_command_starts_again_without_a_lost_node(job, plan):
    ran = job("run", plan=[plan, "- 0"], flags=COMMAND, LOST="n2")
    assert ran.code == 0 and ran.notes[1].startswith("mpirun --host n1:2 -np 2 ")
    assert "lost n2: 1 of 2 nodes are left" in ran.out


def test_a_command_that_runs_on_is_queued_again_before_the_limit(job):
    """Which has moved meanwhile."""
    ran = job("run", plan=["- deaf"], flags=COMMAND, END_OF_DEAF="2026-03-01T12:00:00")
    assert ran.code == 75 and ran.notes[-1] == "requeue 9"
    assert "still running 20 s before the limit" in ran.out


def test_nothing_that_watches_the_limit_outlives_the_script(job, tmp_path):
    """Not even what heeds no TERM, or misses it: it would hold the output open."""
    ran = job("run", flags=COMMAND, plan=["- 3"], SLEEPS=str(tmp_path / "sleeps"))
    assert ran.code == 3, ran.out


def test_starts_of_a_command_that_saves_nothing_are_few(job):
    """One that is told to stop and ends with 75 says that it has saved, and a new file shows it."""
    few = {"RINGTRAIN_IDLE_STARTS": "1", "flags": COMMAND}
    assert job("run", plan=["- 75"], **few).code == 75
    ran = job("run", plan=["- 75"], **few)
    assert ran.code == 1 and "no new checkpoint in 1 starts: this job gives up; it looked in no folder" in ran.out
    told = {**few, "SLURM_JOB_ID": "10", "told": signal.SIGUSR1}
    assert [job("run", plan=["- wait"], **told).code for _ in range(3)] == [75] * 3
    shown = {**few, "SLURM_JOB_ID": "11", "RINGTRAIN_CHECKPOINTS": "runs/ringtrain-9/checkpoints/*.h5"}
    assert [job("run", plan=[f"- 75 {number}"], **shown).code for number in range(3)] == [75] * 3


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_bench_measures_and_tunes(job, tmp_path):
    ran = job("bench", plan=["- 1", "- 0", "- 0"], flags=["--end", "1M"], SLURM_JOB_NAME="ringtrain-bench")
    assert ran.code == 0
    verbs = [note.partition("ringtrain ")[2] for note in ran.notes]
    folder = "bench/ringtrain-bench-9"
    assert verbs == [
        "doctor",
        f"bench-allreduce --json {folder}/allreduce.json --csv {folder}/allreduce.csv --end 1M",
        f"tune --tuning {folder}/tuning.json",
    ]
    assert {path.name for path in (tmp_path / folder).iterdir()} == {
        "job.txt",
        "doctor.txt",
        "allreduce.txt",
        "tune.txt",
    }


@pytest.mark.parametrize(
    ("plan", "tune", "code", "count"), [(["- 0", "- 3"], "no", 3, 2), (["- 0", "- 0", "- 5"], "yes", 5, 3)]
)
def test_the_bench_ends_with_what_failed(job, plan, tune, code, count):
    ran = job("bench", plan=plan, RINGTRAIN_TUNE=tune)
    assert (ran.code, len(ran.notes)) == (code, count)
