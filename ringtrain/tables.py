"""Text tables, for a terminal or as plain lines: whole ones by rich, growing ones row by row."""

import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2
ENDLESS = 10_000  # characters: no line is as long


def plain_table() -> Table:
    """Return an empty table whose columns are two characters apart, without a frame."""
    return Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))


def text_lines(rows: Iterable[Iterable[str]], left: str = "") -> list[str]:
    """Return rows as plain lines without a head. ``left``: a letter a column, "l" or "r", for its side."""
    table = plain_table()
    table.show_header = False
    for side in left:
        table.add_column(justify="left" if side == "l" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return plain_lines(table)


def fixed_line(cells: Iterable[tuple[str, int]]) -> str:
    """Return one row of a growing table. ``cells``: (text, characters of its column); a longer text stays whole."""
    return " ".join(f"{text:>{width}}" for text, width in cells).rstrip()


def width_of(table: Table) -> int:
    """Return the characters of a line that shows all cells as they are."""
    return Console(width=ENDLESS).measure(table).maximum


def plain_lines(table: Table) -> list[str]:
    """Return the lines of a table, as wide as its cells, without colours and trailing blanks."""
    file = io.StringIO()
    Console(file=file, width=width_of(table), color_system=None).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def print_whole(table: Table) -> None:
    """Print a table as wide as its cells; a narrower terminal wraps its lines, and cuts none."""
    console = Console()
    Console(width=max(console.width, width_of(table))).print(table, soft_wrap=True)
