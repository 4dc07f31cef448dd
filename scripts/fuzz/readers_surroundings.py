"""Readers of what surrounds a process: the environment and the command line."""

import os
from pathlib import Path

import click

from ringtrain.bench.sizes import parse_bytes, swept
from ringtrain.cli.hints import in_words
from ringtrain.cli.main import COMMANDS, ringtrain
from ringtrain.cli.options import given
from ringtrain.cli.values import OfRank, Share, Sizes
from ringtrain.cli.variants import folders_of, variants_of
from ringtrain.errors import UsageError, plain
from ringtrain.exchange.machine import Layout
from ringtrain.exchange.tuning_file import _read_here, place_of
from ringtrain.launch.binding import bind
from ringtrain.launch.job_end import job_end
from ringtrain.launch.scheduler import read_job
from ringtrain.resolve import resolve
from ringtrain.train.variants import Variant, same_threads
from ringtrain.transport import launcher, sight, trial
from scripts.fuzz.mutation import any_of, lines, reword, spoil
from scripts.fuzz.reader import Reader
from scripts.fuzz.readers_texts import MACHINE, look_at

# ── environment ───────────────────────────────────────────────────────────────────────────────────────────────
ENVIRONMENTS = [
    "\n".join(text).encode()
    for text in (
        ["OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMP_NUM_THREADS=2"],
        ["PMI_SIZE=4", "PMI_RANK=1", "MPI_LOCALRANKID=0", "CUDA_VISIBLE_DEVICES=0,1", "XDG_CONFIG_HOME=config"],
        ["SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=1", "SLURM_LOCALID=1", "SLURM_GPUS_PER_TASK=1", "SLURM_NTASKS=8"],
        [
            "MV2_COMM_WORLD_SIZE=2",
            "MV2_COMM_WORLD_RANK=0",
            "RINGTRAIN_TUNING=tuning.json",
            "HOME=x",
            "SLURM_GPU_BIND=none",
        ],
        ["SLURM_JOB_ID=7", "SLURM_JOB_END_TIME=9", "SLURM_TASKS_PER_NODE=2(x3),1", "SLURM_JOB_NUM_NODES=4"],
        ["PBS_JOBID=7.host", "PBS_NODEFILE=nodes", "PBS_NP=8", "RINGTRAIN_JOB_END=9"],
        ["LSB_JOBID=7", "LSB_MCPU_HOSTS=n1 4 n2 4", "LSB_DJOB_NUMPROC=8"],
    )
]


def _environment(data: bytes, folder: Path):
    rows = os.fsdecode(data).replace("\0", "").split("\n")
    environ = dict(row.split("=", 1) for row in rows if "=" in row)

    def read() -> None:
        launch = launcher.read_launch(environ)
        assert 0 <= launch.rank < launch.size
        claims = [launcher.local_claims(environ), {}]
        launcher.choose_local_ranks(claims, [0, 0])
        sight.sees(environ), trial.clean(environ)
        same_threads([Variant("a", None, {"threads": 2})], environ)
        _asked_for(environ)
        read_job(environ, lambda number: "", 0.0)
        job_end(environ, lambda number: "", 0.0)
        launcher.check_world(launch, 1, "Open MPI")
        bind(environ, len(rows) % 3, 1)

    return read


def _asked_for(environ: dict) -> None:
    told = _read_here(place_of(None, environ), MACHINE, Layout("1x2", 2, 1))
    if told["error"] or told["remark"]:
        raise UsageError(told["error"] or _shown(told["remark"]))


def _shown(remark: str) -> str:
    assert remark == plain(remark)  # it is shown as it is
    return remark


# ── command line ──────────────────────────────────────────────────────────────────────────────────────────────
LINES = [
    "\n".join(words).encode()
    for words in (
        ["train", "--model", "lenet", "--batch", "64", "--lr", "0.1", "--lr-steps", "10,20", "--slow", "1:2"],
        ["train", "--trace", "--trace-iterations", "3:5", "--batch-norm", "ghost:16", "--no-augment", "--seed", "5"],
        ["train", "--lr-policy", "step", "--lr-steps", "3", "--lr-gamma", "0.5", "--warmup", "2", "-b", "32"],
        ["bench-allreduce", "-b", "1K", "-e", "1.5M", "-f", "4", "--skew", "1:0.01", "--max-regress", "5%"],
        ["tune", "-b", "1K", "--explain", "64K,1M", "--budget-s", "3", "-n", "10"],
        ["schedule", "show", "ring", "--ranks", "4"],
        ["data", "make", "SRC", "-o", "out.h5", "--size", "32x48", "--test-fraction", "0.1", "--seed", "1"],
        ["time", "lenet", "--batch", "64"],
        ["models", "show", "lenet", "-b", "64"],
        ["evaluate", "runs/x", "--data", "d.h5"],
        ["predict", "runs/x", "--out", "p.csv"],
        [
            "compare",
            "--sync",
            "allreduce,averaging --average-every 4",
            "--variant",
            "a: --batch 2",
            "--",
            "--epochs",
            "1",
        ],
    )
]


def _command_line(data: bytes, folder: Path):
    words = os.fsdecode(data).replace("\0", "").split("\n")
    return lambda: _parsed(words)


def _parsed(words: list[str]) -> None:
    """All that is done with the words before a command acts on them."""
    try:
        values = _values(words)
        _used(words, values)
    except click.ClickException as error:
        raise UsageError(in_words(error, words)) from None


def _values(words: list[str]) -> dict:
    if words[0] not in COMMANDS:
        ringtrain.make_context("ringtrain", words)
        return ringtrain.get_command(click.Context(ringtrain), words[0]).name and {}
    command = ringtrain.get_command(click.Context(ringtrain), words[0])
    rest = words[1:]
    if isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    return dict(command.make_context(words[0], rest).params)


def _used(words: list[str], values: dict) -> None:
    if words[0] == "train":
        run_file = values.pop("run_file")
        assert run_file is None or isinstance(run_file, str)
        look_at(resolve(("flags", given(values))))
    if "arguments" in values:
        folders_of("out", variants_of(values["arguments"], values["strategies"], values["variants"]))
    for kind in (OfRank("delay", 0, 60, "1:0.01"), Share(), Sizes()):
        _converted(kind, words[-1])
    swept(parse_bytes("1K"), parse_bytes(words[-1]), 2.0)


def _converted(kind: click.ParamType, word: str) -> None:
    try:
        kind.convert(word, None, None)
    except click.ClickException as error:
        assert error.format_message()


SURROUNDINGS = (
    Reader(
        "environment",
        "variables of launchers, schedulers, users",
        lambda: ENVIRONMENTS,
        any_of(reword, reword, lines, spoil),
        _environment,
    ),
    Reader(
        "command-line", "flags and their values", lambda: LINES, any_of(reword, reword, lines, spoil), _command_line
    ),
)
