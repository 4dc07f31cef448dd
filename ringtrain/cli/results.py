"""Results of a command: tables on the screen, and files that are checked before hours of work."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtrain.bench.sweep.files import check_writable
from ringtrain.cli.output import echo
from ringtrain.report.screen.terminal import is_live
from ringtrain.show.figures import check_picture
from ringtrain.show.tables import Column, fitting_tables, plain_lines
from ringtrain.storage import files

PLAIN_WIDTH = 120  # of a file or a pipe


def show_tables(name: Column, groups: Sequence[Sequence[Column]], rows: Sequence[dict]) -> None:
    """Print rows in tables that fit the terminal, as :func:`ringtrain.show.tables.fitting_tables`."""
    from rich.console import Console

    echo()
    if is_live(sys.stdout, os.environ):
        console = Console()
        for table in fitting_tables(name, groups, rows, console.width, framed=True):
            console.print(table)
        return
    width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    for table in fitting_tables(name, groups, rows, width):
        echo(*plain_lines(table), "")


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """The files that a command writes beside what it shows; None for those that the user does not want."""

    json_path: str | None = None
    csv_path: str | None = None
    plot_path: str | None = None

    def check(self) -> None:
        """Raise UsageError, before hours of work, unless the files and the picture can be written."""
        for path in filter(None, (self.json_path, self.csv_path, self.plot_path)):
            check_writable(path)
        if self.plot_path:
            check_picture(self.plot_path)

    def write(self, json: Callable[[], str], csv: Callable[[], str]) -> None:
        """Write the JSON and the CSV that the user wants. Raises RingtrainError."""
        for path, text in ((self.json_path, json), (self.csv_path, csv)):
            if path is not None:
                write_text(path, text())


def write_text(path, text: str) -> None:
    """Write a file whole or not at all; bytes of names that are no text are escaped. Raises RingtrainError."""
    files.write(Path(path), text.encode(errors="backslashreplace"))
