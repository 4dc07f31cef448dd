"""The command ``ringtrain outcome``."""

import click

from ringtrain.show.output import echo
from ringtrain.storage.run_folder.outcome import KILLED, read_outcome


@click.command()
@click.argument("run")
def outcome(run):
    """Show the outcome of RUN, the folder of a run, in one line, and end with the exit code of the run.

    For scripts: mpirun's own status is 0 after ranks have died and the others continued (--elastic). A run that still
    says `running` is at work, or was killed: 1.
    """
    result = read_outcome(run)
    echo(result.describe())
    return KILLED if result.exit_code is None else result.exit_code
