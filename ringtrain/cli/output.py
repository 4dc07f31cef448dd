"""Standard output of commands: a failed write is an OutputError, printed as one line."""

import errno
import io
import os
import sys
from collections.abc import Sequence

import click

from ringtrain.errors import OutputClosed, OutputError
from ringtrain.show.tables import Column, fitting_tables, plain_lines
from ringtrain.template import joined

PLAIN_WIDTH = 120  # of a file or a pipe


class Output(io.FileIO):
    """Raise the first failed write, and drop later writes: Python writes the rest again when it ends."""

    _failed = False

    def write(self, data) -> int:
        if self._failed:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self._failed = True
            if error.errno == errno.EPIPE:
                raise OutputClosed from None
            raise OutputError(f"standard output cannot be written: {error.strerror}") from None


def prepare_streams() -> None:
    """Replace standard output by one that raises OutputError, and escape characters that a terminal cannot show."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by `>&-`
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w")))
    old = sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(Output(old.fileno(), "w", closefd=False)),
        encoding=old.encoding,
        errors="backslashreplace",
        line_buffering=bool(old.line_buffering),
    )
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def echo(*lines: str, err: bool = False, nl: bool = True) -> None:
    """Print lines for people. All that commands say goes through here, whatever text of others it holds."""
    click.echo(joined(lines), err=err, nl=nl)


def echo_file(text: str) -> None:
    """Print what else goes to a file: JSON, CSV, a script. It is plain already, for its reader's sake."""
    click.echo(text, nl=not text.endswith("\n"))


def show_tables(name: Column, groups: Sequence[Sequence[Column]], rows: Sequence[dict]) -> None:
    """Print rows in tables that fit the terminal, as :func:`ringtrain.show.tables.fitting_tables`."""
    import shutil

    from rich.console import Console

    from ringtrain.report.screen.terminal import is_live

    echo()
    if is_live(sys.stdout, os.environ):
        console = Console()
        for table in fitting_tables(name, groups, rows, console.width, framed=True):
            console.print(table)
        return
    width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    for table in fitting_tables(name, groups, rows, width):
        echo(*plain_lines(table), "")


def check_files(*paths: str | None, picture: str | None = None) -> None:
    """Raise UsageError, before hours of work, unless these files and this picture can be written."""
    from ringtrain.bench.sweep.files import check_writable

    for path in filter(None, (*paths, picture)):
        check_writable(path)
    if picture:
        from ringtrain.show.figures import check_picture

        check_picture(picture)


def write_text(path, text: str) -> None:
    """Write a file whole or not at all; bytes of names that are no text are escaped. Raises RingtrainError."""
    from pathlib import Path

    from ringtrain.storage import files

    files.write(Path(path), text.encode(errors="backslashreplace"))
