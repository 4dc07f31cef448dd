"""Commands as a user calls them, in this process."""

import click
from click.testing import CliRunner

from ringtrain.errors import RingtrainError


def call(command: click.Command, *arguments: str) -> tuple[int, str]:
    """(exit code, what it says)"""
    try:
        done = CliRunner().invoke(command, list(arguments), standalone_mode=False, catch_exceptions=False)
    except (RingtrainError, click.ClickException) as error:
        return error.exit_code, str(error)
    return done.return_value or 0, done.output
