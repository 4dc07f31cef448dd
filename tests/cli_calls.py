"""Commands as a user calls them, in this process; and programs in one of their own."""

import subprocess
import sys

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


def in_new_process(program: str, *arguments, **options) -> subprocess.CompletedProcess:
    """What a Python program says. ``options``: of subprocess.run"""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **{"timeout": 60, **options})
