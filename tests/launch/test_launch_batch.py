"""The batch scripts, run by bash with commands in place of Slurm's and MPI's that note what they are told. (tests/slurm
has the real ones.)

A file of ``batch/`` has for each case the exit code, what those commands note, and what the script says. After an
intended change run the tests with WRITE_BATCH=1, and read the difference."""

import os
import re
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
    commands = {"mpirun": MPIRUN, "srun": SRUN, "sbcast": SBCAST, "scontrol": SCONTROL, "squeue": SQUEUE}
    commands |= {"sleep": SLEEP, "ringtrain": RINGTRAIN, "apptainer": "#!/bin/sh\n"}
    for name, text in commands.items():
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)

    def start(kind="train", plan=("done 0",), flags=(), stop_signal=None, path=None, **environ) -> Ran:
        notes, planned = tmp_path / "notes", tmp_path / "plan"
        notes.write_text("")
        planned.write_text("\n".join(plan) + "\n")
        theirs = ("SLURM_", "RINGTRAIN_", "OMP_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
        environment = {
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
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=-1, stderr=-2, text=True)
        try:
            seen = []
            if stop_signal:
                for line in process.stdout:
                    seen.append(line)
                    if line == "ready\n":
                        process.send_signal(stop_signal)
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
def test_the_scripts_run_the_commands_that_ringtrain_slurm_writes(job, kind, tmp_path):
    """By the whole path of an environment's ringtrain; without any they name the places where they looked."""
    path = ROOT / "scripts" / f"{kind}.sbatch"
    ran = job(path=path, PATH="/usr/bin:/bin")
    assert ran.code == 2 and f"no ringtrain in RINGTRAIN_VENV, in {tmp_path}/.venv or on PATH" in ran.out
    (tmp_path / ".venv").symlink_to(tmp_path)
    ran = job(kind=kind, path=path, flags=["--end", "1K"], plan=["done 0"] * 3)
    assert ran.code == 0 and " ".join(ran.notes).count(" --end 1K") == 1
    assert f" {tmp_path}/.venv/bin/ringtrain " in ran.notes[0]


# ── cases ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
COMMAND = ("sh", "-c", "a command")
GOING = {"plan": ["interrupted 75 40"]}
BY_SRUN = {"RINGTRAIN_LAUNCHER": "srun"}
IMAGE = {"RINGTRAIN_CONTAINER": "image.sif", "RINGTRAIN_CONTAINER_FLAGS": "--bind /scratch"}
STAGE = {"RINGTRAIN_STAGE": "/scratch"}
OWN = {"RUN": "own"}
USR1 = {"stop_signal": signal.SIGUSR1}
TERM = {"stop_signal": signal.SIGTERM}
CASES = {
    "train": {
        "no job": {"SLURM_JOB_ID": ""},
        "ranks of the allocation": {"flags": ["--model", "lenet"]},
        "cores of a task": {"SLURM_TASKS_PER_NODE": "3,1", "SLURM_CPUS_PER_TASK": "6"},
        "a rank a GPU": {"SLURM_NTASKS": "", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "4"},
        "ranks of a setting": {"RINGTRAIN_RANKS_PER_NODE": "3", "RINGTRAIN_MAPPING": "--map-by core"},
        "flags of the launcher": {"RINGTRAIN_LAUNCHER_FLAGS": "--with-ft ulfm"},
        "srun": {**BY_SRUN, "RINGTRAIN_SRUN_MPI": "pmi2", "SLURM_CPUS_PER_TASK": "6"},
        "MPICH": {"MPIRUN_KIND": "HYDRA"},
        "container": IMAGE,
        "container with GPUs": {**IMAGE, "SLURM_GPUS_ON_NODE": "2"},
        "no image": {"RINGTRAIN_CONTAINER": "none.sif"},
        "no environment": {"RINGTRAIN_VENV": "none"},
        "no launcher": {"RINGTRAIN_LAUNCHER": "mprun"},
        "--out own": {**OWN, "flags": ["--out", "own"]},
        "--out=own": {**OWN, "flags": ["--out=own"]},
        "-o own": {**OWN, "flags": ["-o", "own"]},
        "-oown": {**OWN, "flags": ["-oown"]},
        "array": {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "2", "RUN": "runs/ringtrain-4-2"},
        "staged data": {**STAGE, "flags": ["--data", "a/b.h5"]},
        "staged --data=": {**STAGE, "flags": ["--data=a/b.h5"]},
        "staged last data": {**STAGE, "flags": ["--data", "c.h5", "--data=a/b.h5"]},
        "staging fails": {**STAGE, "flags": ["--data", "none.h5"]},
        "nothing to stage": {**STAGE, "flags": ["--model", "lenet"]},
        "from a checkpoint of others": {
            **OWN,
            "plan": ["stalled 4", "running 1 5", "done 0"],
            "flags": ["--resume", "other.h5", "--out", "own"],
        },
        "interrupted": GOING,
        "interrupted, no requeue": {**GOING, "RINGTRAIN_REQUEUE": "no"},
        "interrupted, exit": {**GOING, "RINGTRAIN_REQUEUE": "exit"},
        "interrupted, requeue fails": {**GOING, "REQUEUE_STATUS": "1"},
        "usage": {"plan": ["usage 2"]},
        "diverged": {"plan": ["diverged 3"]},
        "failed": {"plan": ["failed 1"]},
        "no outcome, 2": {"plan": ["- 2"]},
        "no outcome, 0": {"plan": ["- 0"]},
        "no outcome, 75": {"plan": ["- 75"]},
        "a lost node": {"plan": ["failed 1 30", "done 0"], "LOST": "n2"},
        "a lost node, status 0": {"plan": ["running 0 30", "done 0"], "LOST": "n1"},
        "too few nodes": {"plan": ["running 0 30"], "LOST": "n2", "RINGTRAIN_MIN_NODES": "2"},
    },
    "told": {
        "USR1": {"plan": ["- wait"], **USR1},
        "TERM": {"plan": ["- wait"], **TERM},
        "before there are ranks": {"plan": ["- wait"], "TOLD_EARLY": "1"},
        **{
            f"{signal} while nodes are asked after {plan}": {"plan": [plan, "done 0"], "TOLD_PROBING": signal}
            for plan in ("stalled 4", "failed 1")
            for signal in ("USR1", "TERM")
        },
    },
    "run": {
        "a command": {"plan": ["- 0"]},
        "srun": {"plan": ["- 0"], **BY_SRUN},
        "container": {"plan": ["- 0"], "RINGTRAIN_CONTAINER": "image.sif"},
        "no command": {"flags": ()},
        "no such command": {"flags": ("farprogram",)},
        "3": {"plan": ["- 3"]},
        "137": {"plan": ["- 137"]},
        "75": {"plan": ["- 75"]},
        "USR1, 75": {"plan": ["- wait"], **USR1},
        "USR1, 0": {"plan": ["- wait0"], **USR1},
        "USR1, 2": {"plan": ["- wait2"], **USR1},
        "USR1, killed by it": {"plan": ["- dies"], **USR1},
        "TERM": {"plan": ["- wait"], **TERM},
        **{f"a lost node, {status}": {"plan": [f"- {status}", "- 0"], "LOST": "n2"} for status in (0, 1, 4)},
        "deaf": {"plan": ["- deaf"], "END_OF_DEAF": "2026-03-01T12:00:00"},
        # What watches the limit ends with the script, even if it heeds no TERM: it would hold the output open.
        "deaf watcher": {"plan": ["- 3"], "SLEEPS": "sleeps"},
    },
    "bench": {
        "all": {"plan": ["- 1", "- 0", "- 0"], "flags": ["--end", "1M"], "SLURM_JOB_NAME": "ringtrain-bench"},
        "bench fails": {"plan": ["- 0", "- 3"], "RINGTRAIN_TUNE": "no"},
        "tune fails": {"plan": ["- 0", "- 0", "- 5"], "RINGTRAIN_TUNE": "yes"},
    },
}
FILES = Path(__file__).parent / "batch"


def cases_of(path: Path) -> dict[str, str]:
    return dict(case.split("\n", 1) for case in path.read_text().split("== ")[1:]) if path.exists() else {}


@pytest.mark.parametrize(("section", "name"), [(section, name) for section in CASES for name in CASES[section]])
def test_a_start(job, tmp_path, section, name):
    (tmp_path / "image.sif").touch()
    settings = dict(CASES[section][name])
    if section == "run":
        settings.setdefault("flags", COMMAND)
    if "SLEEPS" in settings:
        settings["SLEEPS"] = str(tmp_path / settings["SLEEPS"])
    ran = job({"told": "train"}.get(section, section), **settings)
    words = re.findall(r"(?m)^(?:[\d-]+ [\d:]+ )?(job .*|this is a job.*)$", ran.out)
    lines = [f"exit {ran.code}", *(f"> {note}" for note in ran.notes), *words]
    text = "\n".join(lines).replace(str(tmp_path), "TMP").replace(shutil.which("sh"), "SH") + "\n"
    path = FILES / f"{section}.txt"
    if os.environ.get("WRITE_BATCH"):
        path.write_text("".join(f"== {key}\n{case}" for key, case in {**cases_of(path), name: text}.items()))
    assert cases_of(path)[name] == text, ran.out


# ── what a folder and several starts have to do with it ───────────────────────────────────────────────────────────────
def test_its_first_checkpoint_may_have_one_of_its_names_alone(job, tmp_path):
    """It was killed between writing the best one and calling it by its number, too."""
    (tmp_path / "own" / "checkpoints").mkdir(parents=True)
    (tmp_path / "own" / "checkpoints" / "best.h5").touch()
    (note,) = job(flags=["--resume", "other.h5", "--out", "own"], RUN="own").notes
    assert note.endswith("--resume other.h5 --out own --resume auto")


def test_an_outcome_of_another_start_does_not_count_and_is_left_to_it(job, tmp_path):
    """Of an earlier start, and of a run at work: a second job with its folder ends with what it is told, and the first
    one's script finds how its own ended."""
    assert job(plan=["done 0"]).code == 0
    assert job(plan=["- 2"]).code == 2
    theirs = tmp_path / "own" / "outcome.json"
    theirs.parent.mkdir()
    theirs.write_text('{"outcome": "running", "exit_code": null}')
    ran = job(plan=["- 2"], flags=["--out", "own"], RUN="own")
    assert ran.code == 2 and "ended as not begun, status 2" in ran.out
    assert theirs.read_text() == '{"outcome": "running", "exit_code": null}'


def test_starts_without_a_new_checkpoint_are_few_and_a_new_one_counts_anew(job):
    """Over several starts of the job, and of its ranks."""
    assert job(plan=["running 137", "interrupted 75"]).code == 75
    ran = job(plan=["running 137", "running 137"], SLURM_RESTART_COUNT="1")
    assert ran.code == 1 and len(ran.notes) == 1 and "start 2 on n1 n2" in ran.out
    assert "no new checkpoint in 3 starts: this job gives up" in ran.out
    plan = ["running 137 20", "running 137", "running 0 30", "running 137", "running 137", "done 0"]
    assert job(plan=plan, SLURM_JOB_ID="10", RUN="runs/ringtrain-10").code == 0


def test_starts_of_a_command_that_saves_nothing_are_few(job):
    """One that is told to stop and ends with 75 says that it has saved, and a new file shows it."""
    few = {"RINGTRAIN_IDLE_STARTS": "1", "flags": COMMAND}
    assert job("run", plan=["- 75"], **few).code == 75
    ran = job("run", plan=["- 75"], **few)
    assert ran.code == 1 and "no new checkpoint in 1 starts: this job gives up; it looked in no folder" in ran.out
    stopped = {**few, "SLURM_JOB_ID": "10", "stop_signal": signal.SIGUSR1}
    assert [job("run", plan=["- wait"], **stopped).code for _ in range(3)] == [75] * 3
    shown = {**few, "SLURM_JOB_ID": "11", "RINGTRAIN_CHECKPOINTS": "runs/ringtrain-9/checkpoints/*.h5"}
    assert [job("run", plan=[f"- 75 {number}"], **shown).code for number in range(3)] == [75] * 3


def test_hosts_of_mpich_and_results_of_the_bench_are_files(job, tmp_path):
    job(MPIRUN_KIND="HYDRA")
    assert (tmp_path / "runs/ringtrain-9/hosts.9").read_text() == "n1:2\nn2:2\n"
    job("bench", plan=["- 0"] * 3, SLURM_JOB_NAME="ringtrain-bench")
    names = {path.name for path in (tmp_path / "bench/ringtrain-bench-9").iterdir()}
    assert names == {"job.txt", "doctor.txt", "allreduce.txt", "tune.txt"}
