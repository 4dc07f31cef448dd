"""Tables: as text, for a terminal or as plain lines, whole ones by rich, growing ones row by row; and as CSV."""

import csv
import io
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ringtrain.template import escaped

if TYPE_CHECKING:  # rich takes 50 ms to load, and runs on many ranks print no whole table
    from rich.table import Table
    from rich.text import Text

GAP = 2
ENDLESS = 10_000  # characters: no line is as long


def plain_table(**settings) -> "Table":
    """Return an empty table whose columns are two characters apart, without a frame. ``settings``: rich's."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), **settings)


def cell(text: str, style: str = "") -> "Text":
    """Return the text of others as one cell: without markup, safe for a terminal, on one line."""
    from rich.text import Text

    return Text(escaped(text), style)


def text_lines(rows: Iterable[Iterable[str]], sides: str) -> list[str]:
    """Return rows as plain lines without a head. ``sides``: a letter a column, "l" or "r", for its alignment."""
    table = plain_table(show_header=False)
    for side in sides:
        table.add_column(justify="left" if side == "l" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(cell, row))
    return plain_lines(table)


def fixed_line(cells: Iterable[tuple[str, int]]) -> str:
    """Return one row of a growing table. ``cells``: (text, characters of its column); a longer text stays whole."""
    return " ".join(f"{text:>{width}}" for text, width in cells).rstrip()


def width_of(table: "Table") -> int:
    """Return the characters of a line that shows all cells as they are."""
    from rich.console import Console

    return Console(width=ENDLESS).measure(table).maximum


def plain_lines(table: "Table") -> list[str]:
    """Return the lines of a table, as wide as its cells, without colours and trailing blanks."""
    from rich.console import Console

    output = io.StringIO()
    Console(file=output, width=width_of(table), color_system=None).print(table)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def print_whole(table: "Table") -> None:
    """Print a table as wide as its cells; a narrower terminal wraps its lines, and cuts none."""
    from rich.console import Console

    console = Console()
    Console(width=max(console.width, width_of(table))).print(table, soft_wrap=True)


def csv_text(names: Iterable[str], rows: Iterable[Iterable]) -> str:
    """Return rows as CSV under a head of names. Cells hold their values as they are; None is an empty cell."""
    lines: list[str] = []
    writer = csv.writer(SimpleNamespace(write=lines.append))  # its own ends of lines: it quotes cells that have them
    writer.writerows([names, *rows])
    return "".join(f"{line[:-2]}\n" for line in lines)
