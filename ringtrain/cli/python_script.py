"""The command line of ``python -m ringtrain.torch``."""

from collections.abc import Sequence

import click

from ringtrain.allreduce.catalogue import AUTO, check_algorithm
from ringtrain.cli.hints import in_words
from ringtrain.errors import UsageError
from ringtrain.launch.python_script import ScriptCommand

NAME = "python -m ringtrain.torch"


def parse_script_command(arguments: Sequence[str]) -> ScriptCommand | str:
    """Return the command: options of the launcher, then the script with its own. The help if it is asked for. Raises
    UsageError.
    """
    try:
        context = launcher.make_context(NAME, list(arguments))
    except click.ClickException as error:
        raise UsageError(in_words(error, arguments)) from None
    options = dict(context.params)
    words = options.pop("words")
    if options.pop("help"):
        return context.get_help()
    if not words:
        raise UsageError(
            "there is no script to run: python -m ringtrain.torch script.py, or -m module; --help shows the options"
        )
    check_algorithm(options["algorithm"])
    return ScriptCommand(words[0], words[1:], **options)


@click.command(
    add_help_option=False,  # every rank would print it
    options_metavar="[OPTIONS] [-m]",
    context_settings={"allow_interspersed_args": False, "max_content_width": 110},
)
@click.option(
    "--deadline-s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="How long to wait for ranks without progress; then they are named, and all end with exit code 4. "
    "[RINGTRAIN_DEADLINE_S, or the timeout of the script's init_process_group]",
)
@click.option(
    "--algorithm",
    metavar="NAME",
    default=AUTO,
    show_default=True,
    help="Of all-reduces, as in `ringtrain bench-allreduce`; auto takes the fastest.",
)
@click.option(
    "--no-check-collectives",
    "check_collectives",
    flag_value=False,
    default=True,
    help="Do not compare the collectives of ranks.",
)
@click.option("-m", "is_module", is_flag=True, help="A module follows, in place of a file.")
@click.option("-h", "--help", is_flag=True, help="Show this text.")
@click.argument("words", metavar="SCRIPT [ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def launcher(**options):
    """Run a script of PyTorch on every rank of an MPI, unmodified: its process groups of gloo and mpi become
    ringtrain's. Options stand before the script.

    \b
    mpirun -np 4 python -m ringtrain.torch train.py --epochs 3
    srun -n 4 python -m ringtrain.torch -m package.train --epochs 3
    """
