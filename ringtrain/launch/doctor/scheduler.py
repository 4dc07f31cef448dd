"""The batch job of this process, as Slurm, PBS (also Torque) or LSF describe it.

An mpirun that starts its daemons by srun passes Slurm's count of the daemons to its ranks: that is no number of tasks.
A run stops by the end of the job (:mod:`ringtrain.launch.slurm.job_end`).
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ringtrain.errors import UsageError
from ringtrain.humanize import plural
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, DoctorContext, Line
from ringtrain.launch.slurm.job_end import NUMBERS, Ask, ask_squeue, job_end
from ringtrain.parsing import whole_number
from ringtrain.transport.launch_environment import read_launch

SOON_S = 120.0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job. by: the batch system; nodes, tasks, left_s: its resources, None if unknown; cores: of one task"""

    by: str
    number: str
    nodes: int | None = None
    tasks: int | None = None
    cores: int | None = None
    left_s: float | None = None


def read_job(environ: Mapping[str, str], ask: Ask, now: float) -> RunningJob | None:
    """Read the job from the environment. ``ask``: returns when Slurm's job of this number ends; ``now``: seconds since
    1970. Raises UsageError as ``job_end``."""
    for name, read in zip(NUMBERS, (_slurm, _pbs, _lsf), strict=True):
        if environ.get(name):
            end = job_end(environ, ask, now)
            return replace(read(environ), left_s=None if end is None else end - now)
    return None


def _slurm(environ: Mapping[str, str]) -> RunningJob:
    nodes = _number(environ, "SLURM_JOB_NUM_NODES") or _number(environ, "SLURM_NNODES")
    daemons = "SLURM_STEP_NUM_TASKS" in environ and read_launch(environ).by not in ("", "srun")
    tasks = _number(environ, "SLURM_NTASKS") or total_tasks(environ.get("SLURM_TASKS_PER_NODE", ""))
    cores = _number(environ, "SLURM_CPUS_PER_TASK")
    return RunningJob("Slurm", environ["SLURM_JOB_ID"], nodes, None if daemons else tasks, cores)


def _pbs(environ: Mapping[str, str]) -> RunningJob:
    """Read PBS's node file: a line is a place for a task."""
    places = _places(environ.get("PBS_NODEFILE", ""))
    nodes = len(set(places)) or _number(environ, "PBS_NUM_NODES")
    return RunningJob("PBS", environ["PBS_JOBID"], nodes, len(places) or _number(environ, "PBS_NP"))


def _places(file: str) -> list[str]:
    """Return the lines of a node file; empty if it is missing or unreadable."""
    try:
        return Path(file).read_text(errors="replace").split()
    except OSError:
        return []


def _lsf(environ: Mapping[str, str]) -> RunningJob:
    """Read LSF's hosts and slots in turns: "node1 4 node2 4"."""
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    slots = [whole_number(word) or 0 for word in words[1::2]]
    tasks = _number(environ, "LSB_DJOB_NUMPROC") or sum(slots) or None
    return RunningJob("LSF", environ["LSB_JOBID"], len(set(words[::2])) or None, tasks)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    return whole_number(environ.get(name, ""))


def total_tasks(text: str) -> int | None:
    """Return the sum of "2(x3),1": 7; None for anything else."""
    parts = text.split(",")
    found = [match for part in parts if (match := re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part))]
    return sum(int(part[1]) * int(part[2] or 1) for part in found) if len(found) == len(parts) else None


def scheduler(context: DoctorContext) -> list[Line]:
    """Check that the ranks use all resources of the job; collective."""
    transport = context.transport
    problem, reported = transport.gather_json(_read(context.environ) if transport.rank == 0 else None)[0]
    cores = transport.gather_json(len(os.sched_getaffinity(0)))
    if problem:
        return [Line(FAIL, "batch system", problem)]
    if reported is None:
        by = read_launch(context.environ).by
        return [Line(OK, "batch system", f"none; {by} starts the ranks" if by else "none")]
    job = RunningJob(**reported)
    findings = _findings(job, transport.nodes, transport.size, min(cores))
    if findings:
        found, advice = (dict.fromkeys(said) for said in zip(*findings, strict=True))
        return [Line(WARN, "batch system", "; ".join([_words(job), *found]), "; ".join(advice))]
    return [Line(OK, "batch system", _words(job))]


def _read(environ: Mapping[str, str]) -> tuple[str, dict | None]:
    """Return (the reason of a failure, the job)."""
    try:
        job = read_job(environ, ask_squeue, time.time())
    except UsageError as error:
        return str(error), None
    return "", None if job is None else asdict(job)


def _words(job: RunningJob) -> str:
    given = [plural(count, word) for count, word in ((job.nodes, "node"), (job.tasks, "task")) if count is not None]
    left = "" if job.left_s is None else f", {_span(job.left_s)} left"
    return f"{job.by} job {job.number}{': ' if given else ''}{', '.join(given)}{left}"


def _span(seconds: float) -> str:
    minutes = max(0, int(seconds // 60))
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def _findings(job: RunningJob, nodes: int, size: int, cores: int) -> list[tuple[str, str]]:
    """Return (problems, advice)."""
    found: list[tuple[str, str]] = []
    if job.nodes is not None and nodes < job.nodes:
        found.append((f"ranks are on {nodes} of them", "start ranks on all: mpirun without --host, or srun"))
    elif job.tasks is not None and size < job.tasks:
        found.append((f"there {'is' if size == 1 else 'are'} {plural(size, 'rank')}", "start as many by mpirun, srun"))
    if job.cores is not None and cores < job.cores:
        text = f"a task has {plural(job.cores, 'core')}, but a rank runs on {cores}"
        found.append((text, f"mpirun --map-by slot:PE={job.cores}, or srun --cpus-per-task={job.cores}"))
    if job.left_s is not None and job.left_s < SOON_S:
        found.append(("it ends soon", "ask for more time: --time of Slurm"))
    return found
