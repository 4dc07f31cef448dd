"""The command group, and the one place where an error becomes a message and an exit code.

Commands are imported when they are named, so that ``ringtrain --help`` loads none of them.
"""

import importlib
import os

import click

from ringtrain import __version__
from ringtrain.cli.hints import UNKNOWN_COMMAND, in_words
from ringtrain.cli.world import end_with
from ringtrain.errors import RingtrainError, UsageError, naming_packages, naming_paths, nearest
from ringtrain.parsing import UNSET
from ringtrain.show.output import echo
from ringtrain.transport.launch_environment import read_launch

COMMANDS = {
    "train": ("ringtrain.cli.train", "Train a model; under mpirun, on every rank together."),
    "compare": ("ringtrain.cli.compare", "Compare runs: strategies, bytes, speed, accuracy."),
    "scale": ("ringtrain.cli.scale", "Measure strong and weak scaling of a training."),
    "runs": ("ringtrain.cli.runs", "List runs by their options and results; write the log of one as CSV."),
    "report": ("ringtrain.cli.report", "Write a report of runs: one HTML file, or their curves."),
    "evaluate": ("ringtrain.cli.evaluate", "Compute loss and metrics of a checkpoint on a data set."),
    "predict": ("ringtrain.cli.predict", "Predict classes of images, folders, arrays or a data set."),
    "export": ("ringtrain.cli.export", "Write the weights of a run to a safetensors or ONNX file."),
    "outcome": ("ringtrain.cli.outcome", "Show the outcome of a run, and end with its exit code."),
    "models": ("ringtrain.cli.models", "List and copy the bundled models, and the cost of a model."),
    "time": ("ringtrain.cli.time", "Time forward and backward of each layer of a model."),
    "plan": ("ringtrain.cli.plan", "Predict speed and cost on other numbers of ranks."),
    "schedule": ("ringtrain.cli.schedule", "Show an all-reduce: steps, proof, predicted time, picture."),
    "bench-allreduce": (
        "ringtrain.cli.bench_allreduce",
        "Measure all-reduce algorithms against the MPI's own, under mpirun.",
    ),
    "tune": ("ringtrain.cli.tune", "Find the fastest all-reduce on this machine, under mpirun."),
    "slurm": ("ringtrain.cli.slurm", "Write a batch script for Slurm."),
    "doctor": ("ringtrain.cli.doctor", "Preflight check: MPI, cores, GPUs, disk, links."),
    "data": ("ringtrain.cli.data", "Make, show and check data sets."),
}
SHOWN_ONCE = ("models", "schedule", "export", "runs", "report", "plan")  # the same on every rank: rank 0 prints it
BY_ITSELF = ("outcome", "slurm", "data")  # of the files that each rank sees
MAY_BE_EMPTY = ("--sbatch",)  # an option of another program


class LazyGroup(click.Group):
    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        if name not in COMMANDS:
            raise click.UsageError(UNKNOWN_COMMAND.format(name=name, hint=nearest(name, COMMANDS)), ctx)
        return getattr(importlib.import_module(COMMANDS[name][0]), name.replace("-", "_"))

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ringtrain")
def ringtrain():
    """Train neural networks data-parallel under MPI.

    \b
    ringtrain train                              one process, the shipped digits
    mpirun -np 4 ringtrain train --model lenet --data fashion.h5
    """


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code (the table is in :mod:`ringtrain.errors`)."""
    if "OMP_NUM_THREADS" not in os.environ:
        # NumPy's BLAS, which reads this when NumPy is first imported, would take every core, for every rank.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    shows_text = {"--help", "-h", "--version"} & {argument.partition("=")[0] for argument in arguments}
    # All ranks would print the same.
    once = not arguments or bool(shows_text) or arguments == ["data"] or arguments[0] in SHOWN_ONCE
    if once and read_launch(os.environ).rank > 0:
        return 0
    alone = once or arguments[0] in BY_ITSELF
    try:
        _check_given(arguments)
        with naming_packages(), naming_paths():
            return ringtrain.main(arguments, prog_name="ringtrain", standalone_mode=False) or 0
    except click.exceptions.Exit as exit:
        return exit.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        echo(*error.ctx.get_help().splitlines())
        return UsageError.exit_code
    except click.ClickException as error:
        return end_with(UsageError(in_words(error)), alone)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except RingtrainError as error:
        return end_with(error, alone)


def _check_given(arguments: list[str]) -> None:
    """Raise UsageError for an empty argument, which is nearly always an unset shell variable."""
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in MAY_BE_EMPTY or (index and arguments[index - 1] in MAY_BE_EMPTY):
            continue
        if flag.startswith("--") and equals and not value:
            raise UsageError(f"{flag} is empty: {UNSET}")
        if not argument:
            before = arguments[index - 1] if index else ""
            named = before if before.startswith("-") and before != "--" else f"argument {index + 1}"
            raise UsageError(f"{named} is empty: {UNSET}")
