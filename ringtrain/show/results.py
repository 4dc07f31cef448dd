"""Results of a command: tables on the screen, and files that are checked before hours of work."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ringtrain.show.figures import check_picture, write_picture
from ringtrain.show.output import echo
from ringtrain.show.tables import Column, fitting_tables, plain_lines
from ringtrain.storage import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "the picture is in {path}"
PLAIN_WIDTH = 120  # of a file or a pipe


def is_live(stream: TextIO, environment) -> bool:
    """Return whether the stream can show a progress display: a terminal with a width, not a dumb one, in UTF-8.

    The width decides under Open MPI, which puts every rank's output on a terminal of its own making: that one
    has the size of the user's, or none if the output of mpirun goes to a file or a pipe.
    """
    is_utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
    if environment.get("TERM", "dumb") in ("", "dumb") or not is_utf8:
        return False
    try:
        return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):
        return False


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
            files.check_writable(path)
        if self.plot_path:
            check_picture(self.plot_path)

    def write(self, json: Callable[[], str] | None = None, csv: Callable[[], str] | None = None) -> None:
        """Write the JSON and the CSV that the user wants. Raises RingtrainError."""
        for path, text in ((self.json_path, json), (self.csv_path, csv)):
            if path is not None and text is not None:
                write_text(path, text())

    def draw(self, make: "Callable[[], Figure]") -> None:
        """Draw the picture that the user wants, and say where it is. Raises RingtrainError."""
        if self.plot_path:
            write_picture(make, self.plot_path)
            echo(PICTURE.format(path=self.plot_path))


def write_text(path, text: str) -> None:
    """Write a file whole or not at all; bytes of names that are no text are escaped. Raises RingtrainError."""
    files.write(Path(path), text.encode(errors="backslashreplace"))
