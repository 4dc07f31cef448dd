"""Tables as columns and rows: in a terminal by rich, as plain lines, and as CSV and JSON; growing ones row by row."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ringtrain.template import escaped

if TYPE_CHECKING:  # rich takes 50 ms to load, and runs on many ranks print no whole table
    from rich.table import Table
    from rich.text import Text

NOTHING = "–"
GAP = 2
ENDLESS = 10_000  # characters: no line is as long
LEAST_WORDS, MOST_WORDS = 16, 34  # width of columns of words, which wrap
FIGURES = 34  # columns of a terminal that most groups need for the rest


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    key: Any  # of its figure in a row; None: the row itself
    title: str  # the line above it, and unit the line below that
    unit: str = ""
    form: str | Callable[..., str] = "{}"  # a format, or a function, of the figure times scale
    best: Callable[[list[float]], float] | None = None  # min or max, by which a figure is shown as the best one
    left: bool = False  # it has words
    scale: float = 1
    spread: Sequence[str] = ()  # ends of keys whose figures the form takes, too: "_low" is of KEY_low
    none: str = NOTHING  # the text of a figure that is None
    width: int = 0  # characters, in a table that grows row by row

    def text(self, row) -> str:
        values = [self.value(row), *(row[f"{self.key}{end}"] for end in self.spread)]
        if values[0] is None:
            return self.none
        if self.scale != 1:
            values = [None if value is None else self.scale * value for value in values]
        return (self.form.format if isinstance(self.form, str) else self.form)(*values)

    def value(self, row) -> Any:
        return row if self.key is None else row.get(self.key) if isinstance(row, Mapping) else row[self.key]

    def best_rows(self, rows: Sequence) -> list[int]:
        """Return the rows with the best figure; none if all have the same one."""
        values = [] if self.best is None else [value for row in rows if (value := self.value(row)) is not None]
        if self.best is None or len(set(values)) < 2:
            return []
        return [i for i, row in enumerate(rows) if self.value(row) == self.best(values)]


# ── by rich ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def make_table(columns: Sequence[Column], rows: Sequence, framed: bool = False, words: int | None = None) -> "Table":
    """Return a table. ``framed``: with a line under the titles and with colours, for a terminal; ``words``: the most
    characters of columns of words, which wrap; None: no line wraps."""
    table = framed_table(padding=(0, 1, 0, 0)) if framed else plain_table()
    add_columns(table, columns, words)
    best = {(i, column) for column in columns for i in column.best_rows(rows)} if framed else ()
    for i, row in enumerate(rows):
        texts = [(column.text(row), column) for column in columns]
        styles = [_style(text, column is columns[0], (i, column) in best) if framed else "" for text, column in texts]
        cells = zip(texts, styles, strict=True)
        table.add_row(*(cell(text, style, words if column.left else None) for (text, column), style in cells))
    return table


def framed_table(**settings) -> "Table":
    """Return an empty table with a line under its titles. ``settings``: rich's."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, **settings)


def plain_table(**settings) -> "Table":
    """Return an empty table whose columns are two characters apart, without a frame. ``settings``: rich's."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), **settings)


def boxed_table(
    titles: Sequence[str], rows: Iterable[Iterable], left: Sequence[str], whole: Sequence[str], lines: bool = False
) -> "Table":
    """Return a table with a frame around every cell, for a terminal.

    left:  titles of columns of words
    whole: titles of columns whose lines do not wrap
    lines: with lines between the rows
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=lines)
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=title in whole)
    for row in rows:
        table.add_row(*(each if isinstance(each, Text) else cell(str(each)) for each in row))
    return table


def add_columns(table: "Table", columns: Sequence[Column], words: int | None = None) -> None:
    """Add columns with their titles and, in a line below, their units if there are any."""
    from rich.text import Text

    units = any(column.unit for column in columns)
    for column in columns:
        head = Text(column.title) + Text(f"\n{column.unit}" if units else "", style="dim")
        if column.left and words is not None:
            table.add_column(head, max_width=words, overflow="fold")
        else:
            table.add_column(head, justify="left" if column.left else "right", no_wrap=True)


def _style(text: str, is_name: bool, best: bool) -> str:
    if best:
        return "bold green"
    return "dim" if text == NOTHING else "bold" if is_name else ""


def fitting_tables(
    name: Column, groups: Sequence[Sequence[Column]], rows: Sequence[dict], width: int, framed: bool = False
) -> "list[Table]":
    """Return the columns that any row has a figure for, in as many tables as lines of ``width`` need.

    name:   the first column of each table
    groups: columns that stay together if the width allows
    """
    words = min(max(LEAST_WORDS, (width - FIGURES) // 2), MOST_WORDS)
    names = width_of(make_table([name], rows, framed, words))
    chosen: list[list[Column]] = [[]]
    room = width - names  # in the last table
    for shown in shown_columns(groups, rows):
        needs = {column: width_of(make_table([name, column], rows, framed, words)) - names for column in shown}
        whole = sum(needs.values()) <= width - names
        for part in [shown] if whole else [[column] for column in shown]:
            needed = sum(needs[column] for column in part)
            if chosen[-1] and needed > room:
                chosen.append([])
                room = width - names
            chosen[-1] += part
            room -= needed
    return [make_table([name, *columns], rows, framed, words) for columns in chosen if columns]


def shown_columns(groups: Iterable[Sequence[Column]], rows: Sequence[dict]) -> list[list[Column]]:
    """Return the columns of each group that any row has a figure for."""
    return [[column for column in group if any(column.text(row) != NOTHING for row in rows)] for group in groups]


def cell(text: str, style: str = "", words: int | None = None) -> "Text":
    """Return the text of others as one cell: without markup, safe for a terminal, on one line; on more, which end at
    "/", if it has more than ``words`` characters."""
    from rich.text import Text

    return Text(escaped(text).replace("/", "/\n") if words and len(text) > words else escaped(text), style)


def width_of(table: "Table") -> int:
    """Return the characters of a line that shows all cells as they are."""
    from rich.console import Console

    return Console(width=ENDLESS).measure(table).maximum


def print_whole(table: "Table") -> None:
    """Print a table as wide as its cells; a narrower terminal wraps its lines, and cuts none."""
    from rich.console import Console

    console = Console()
    Console(width=max(console.width, width_of(table))).print(table, soft_wrap=True)


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def plain_lines(table: "Table") -> list[str]:
    """Return the lines of a table, as wide as its cells, without colours and trailing blanks."""
    from rich.console import Console

    output = io.StringIO()
    Console(file=output, width=width_of(table), color_system=None).print(table)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def text_lines(rows: Iterable[Iterable[str]], sides: str) -> list[str]:
    """Return rows as plain lines without a head. ``sides``: a letter a column, "l" or "r", for its alignment."""
    table = plain_table(show_header=False)
    add_columns(table, [Column(i, "", left=side == "l") for i, side in enumerate(sides)])
    for row in rows:
        table.add_row(*map(cell, row))
    return plain_lines(table)


def fixed_line(cells: Iterable[tuple[str, int]]) -> str:
    """Return one row of a growing table. ``cells``: (text, characters of its column); a longer text stays whole."""
    return " ".join(f"{text:>{width}}" for text, width in cells).rstrip()


# ── for other programs ────────────────────────────────────────────────────────────────────────────────────────────────
def csv_text(names: Iterable[str], rows: Iterable) -> str:
    """Return rows as CSV under a head of names. Cells hold their values as they are; None is an empty cell.

    rows: sequences of cells, or mappings, from which the names are taken
    """
    names, lines = list(names), list[str]()
    writer = csv.writer(SimpleNamespace(write=lines.append))  # its own ends of lines: it quotes cells that have them
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] if isinstance(row, Mapping) else row for row in rows)
    return "".join(f"{line[:-2]}\n" for line in lines)


def json_text(value) -> str:
    return json.dumps(value, indent=1) + "\n"
