"""Batch scripts for Slurm.

A script is its #SBATCH lines, then site-specific settings as variables, then the text of ``batch/``. sbatch's command
line, the environment, or the site decide about unset options.
"""

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ringtrain.config.option import flag
from ringtrain.errors import ConfigError, nearest

BATCH = Path(__file__).with_name("batch")
NAMES = {"train": "ringtrain", "bench": "ringtrain-bench", "run": "ringtrain-run"}
GOES_ON = ("train", "run")  # kinds that stop in time, are queued again, and start without a dead node
WIDTH = 48  # where comments of settings begin
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")
_MEMORY = re.compile(r"\d+[KMGT]?")
_NAME = re.compile(r"[\w./:@%+=,~^-]+")


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """The options of a job that follow from the cluster; None and empty mean unset."""

    partition: str | None = flag("Partition. [the site's]", short="p")
    account: str | None = flag("Account that is charged. [yours]", short="A")
    qos: str | None = flag("Quality of service. [the site's]")
    sbatch: tuple[str, ...] = flag("One more option of sbatch: --sbatch=--constraint=a100", (), metavar="OPTION")
    modules: tuple[str, ...] = flag("A module to load; may be given again.", (), name="module", metavar="NAME")
    venv: str | None = flag("Virtual environment with ringtrain in it. [ringtrain on PATH]", metavar="DIR")
    container: str | None = flag("Apptainer image with ringtrain in it.", metavar="IMAGE.sif")
    launcher: str | None = flag(
        "Program that starts the ranks. [mpirun if it exists]", choices=("auto", "mpirun", "srun")
    )
    launcher_flags: str = ""  # more flags of mpirun or srun


@dataclass(frozen=True, slots=True)
class BatchJob:
    """The options of a job; None and empty mean unset."""

    kind: str = "train"  # train, bench or run
    nodes: int | None = flag("Nodes.", 1, short="N", low=1)
    gpus: int | None = flag("GPUs of a node, with a rank for each.", low=1)
    ranks_per_node: int | None = flag("Ranks of a node. [one for each GPU, or sbatch's default]", low=1)
    cpus_per_task: int | None = flag("Cores of a rank, and its threads. [the site's]", low=1)
    memory: str | None = flag("Memory of a node, as 64G. [the site's]", name="mem", metavar="SIZE")
    time: str | None = flag("Limit of a start: minutes, 4:00:00, 1-12.", "1:00:00", short="t")
    name: str | None = flag("Name of the job and of its run folder. [ringtrain]", short="J")
    # of `ringtrain train`, or of `ringtrain bench-allreduce`; the command of each rank, for run
    flags: tuple[str, ...] = ()
    site: SiteOptions = SiteOptions()

    @property
    def ranks(self) -> int | None:
        """The number of ranks; None if it is unset."""
        on_node = self.ranks_per_node or self.gpus
        return None if on_node is None or self.nodes is None else on_node * self.nodes


def check_job(job: BatchJob) -> None:
    """Raise ConfigError for a value that sbatch refuses, or that a shell would not treat as a plain name."""
    if job.kind not in NAMES:
        raise ConfigError(f"there is no script {job.kind!r}; {nearest(job.kind, NAMES)}")
    if job.kind == "run" and not job.flags:
        raise ConfigError("run wants the command of each rank after --, as -- python -m ringtrain.torch train.py")
    if job.time is not None and not _TIME.fullmatch(job.time):
        raise ConfigError(f"--time {job.time}: wanted minutes, hours:minutes:seconds or days-hours, as 90 or 4:00:00")
    if job.memory is not None and not _MEMORY.fullmatch(job.memory):
        raise ConfigError(f"--mem {job.memory}: wanted a number and K, M, G or T, as 64G; 0 for all of a node's")
    named = [(option, getattr(job.site, option)) for option in ("partition", "account", "qos", "venv", "container")]
    for option, value in [("name", job.name), *named, *(("module", module) for module in job.site.modules)]:
        if value is not None and not _NAME.fullmatch(value):
            raise ConfigError(f"--{option} {value!r}: wanted a name without blanks and shell characters")
    if job.site.container is not None and job.site.venv is not None:
        raise ConfigError("--container and --venv both bring ringtrain: give one of them")
    for line in job.site.sbatch:
        if not line.startswith("-") or not line.isprintable():
            raise ConfigError(f"--sbatch {line!r}: wanted one option of sbatch, as --sbatch=--constraint=a100")


def script(job: BatchJob) -> str:
    """Return the whole script of a checked job."""
    program, words = ("the command", "") if job.kind == "run" else ("ringtrain", ", and win")
    lines = [
        "#!/usr/bin/env bash",
        f"# {ABOUT[job.kind]}",
        f"# Options of sbatch win over the #SBATCH lines here, and words after the script's name go to {program}.",
        "# Written by `ringtrain slurm`; docs/slurm.md explains it.",
        "",
        *_directives(job),
        "",
        *_settings(job),
        "",
        f"# {FLAGS[job.kind]}; those on sbatch's command line come after them{words}.",
        f'flags=({"".join(f"{_quoted(word)} " for word in job.flags)}"$@")',
        "",
    ]
    names = ["common", *(["starts"] if job.kind in GOES_ON else []), job.kind]
    return "\n".join(lines) + "\n".join((BATCH / f"{name}.sh").read_text() for name in names)


# ── its head ──────────────────────────────────────────────────────────────────────────────────────────────────────────
ABOUT = {
    "train": "Train under Slurm: stop before the limit, queue again, resume; survive the death of a node.",
    "bench": "Measure the all-reduce over the nodes of a job, and tune `--algorithm auto` for them.",
    "run": "Run a command under Slurm: tell it to stop before the limit, queue again; survive the death of a node.",
}

FLAGS = {
    "train": "Flags of `ringtrain train`",
    "bench": "Flags of `ringtrain bench-allreduce`",
    "run": "The words of the command of each rank",
}


def _directives(job: BatchJob) -> list[str]:
    options = {
        "job-name": job.name or NAMES[job.kind],
        "nodes": job.nodes,
        "ntasks-per-node": job.ranks_per_node or job.gpus,
        "gpus-per-node": job.gpus,
        "cpus-per-task": job.cpus_per_task,
        "mem": job.memory,
        "time": job.time,
        "partition": job.site.partition,
        "account": job.site.account,
        "qos": job.site.qos,
        "output": "%x-%j.log",
    }
    lines = [f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None]
    if job.kind in GOES_ON:
        lines += [
            "#SBATCH --open-mode=append   # one log for all starts",
            "#SBATCH --requeue",
            "#SBATCH --signal=B:USR1@120  # to this script, 120 s before the limit or a preemption",
            "#SBATCH --no-kill            # the death of a node does not end the job",
        ]
    return lines + [f"#SBATCH {line}" for line in job.site.sbatch]


# ── settings of the site ─────────────────────────────────────────────────────────────────────────────────────────────
def _settings(job: BatchJob) -> list[str]:
    common = [
        ("modules", " ".join(job.site.modules), "modules of the site: gcc openmpi/5.0"),
        ("venv", job.site.venv or "", "a virtual environment [ringtrain on PATH, or .venv or venv here]"),
        ("container", job.site.container or "", "an Apptainer image with ringtrain, in place of both"),
        ("container_flags", "", "of apptainer exec: --bind /scratch"),
        ("launcher", job.site.launcher or "auto", "mpirun or srun; auto: mpirun if it exists"),
        ("launcher_flags", job.site.launcher_flags, "more flags of the launcher"),
        ("mapping", "", "--map-by and --bind-to of Open MPI's mpirun"),
        ("srun_mpi", "pmix", "pmix for Open MPI, pmi2 for MPICH: srun --mpi=list"),
        ("ranks_per_node", "", "[--ntasks-per-node, or one a GPU]"),
    ]
    goes_on = [
        ("runs", "runs", "run folders are RUNS/NAME-JOB"),
        ("requeue", "scontrol", "how to queue a job again: scontrol; exit, by RequeueExit=75; no"),
        ("idle_starts", "3", "starts without a new checkpoint before a job gives up"),
        ("min_nodes", "1", "with fewer live nodes, the job is queued again for all"),
        ("probe_s", "30", "seconds in which a live node answers srun"),
    ]
    by_kind = {
        "train": [("stage", "", "a local disk of each node for a copy of --data: /scratch"), *goes_on],
        "run": [
            *goes_on,
            ("checkpoints", "", "of the command: files, folders, patterns; new ones count as progress"),
            ("last_s", "20", "a command that still runs so long before the limit is queued again"),
        ],
        "bench": [
            ("results", "bench", "results are in RESULTS/NAME-JOB"),
            ("tune", "yes", "whether to write tuning.json too"),
        ],
    }
    settings = common + by_kind[job.kind]
    commented = ((f'{name}="${{RINGTRAIN_{name.upper()}:-{value}}}"', comment) for name, value, comment in settings)
    head = "# ── settings of the site: edit them, or sbatch --export=ALL,RINGTRAIN_VENV=… " + "─" * 41
    return [head, *(f"{line:<{WIDTH}}  # {comment}" for line, comment in commented)]


def _quoted(word: str) -> str:
    """Return a word as bash reads it, in characters that are safe on a terminal."""
    if word.isprintable():
        return shlex.quote(word)
    safe = (chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(word))
    return f"$'{''.join(safe)}'"
