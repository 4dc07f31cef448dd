"""The command group, and the one place where an error becomes a message and an exit code.

Commands are imported when they are named, so that ``ringtrain --help`` loads none of them.
"""

import importlib
import os

import click

from ringtrain import __version__
from ringtrain.errors import RingtrainError, nearest

COMMANDS = {
    "train": ("ringtrain.cli.train", "Train a model; under mpirun, on every rank together."),
    "evaluate": ("ringtrain.cli.evaluate", "Loss and accuracy of a checkpoint on a data set."),
    "predict": ("ringtrain.cli.predict", "Classes, probabilities or a layer's features of every example."),
    "models": ("ringtrain.cli.models", "The models that come with ringtrain."),
    "data": ("ringtrain.cli.data", "Make, show and check data sets."),
}

# Where launchers tell a process its rank: read before any MPI is loaded, to let one rank speak.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


class LazyGroup(click.Group):
    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        if name not in COMMANDS:
            raise click.UsageError(f"no command {name!r}; {nearest(name, COMMANDS)}", ctx)
        return getattr(importlib.import_module(COMMANDS[name][0]), name)

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
    """Run one command; the exit code (the table is in :mod:`ringtrain.errors`)."""
    try:
        return ringtrain.main(arguments, prog_name="ringtrain", standalone_mode=False) or 0
    except click.exceptions.Exit as exit:
        return exit.exit_code
    except click.ClickException as error:
        if _speaks():
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except RingtrainError as error:
        if _speaks():
            click.echo(f"ringtrain: {error}", err=True)
        return error.exit_code


def _speaks() -> bool:
    """Whether this process is rank 0, or alone."""
    ranks = (os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    return next(ranks, "0") == "0"
