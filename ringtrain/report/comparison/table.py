"""A comparison as text: columns in blocks that fit the terminal, each with the runs' names in front."""

import csv
import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringtrain.report.comparison.rows import FIELDS, NOTHING, least_median_most

GAP = 2
MIB = 1 << 20
LEAST_WORDS, MOST_WORDS = 16, 34  # width of names and strategies, which are wrapped
FIGURES = 34  # columns that most groups need for the rest


@dataclass(frozen=True, slots=True)
class Column:
    """title, unit: two lines above it. text: of a row, NOTHING where the run has none; best: which is bold."""

    title: str
    unit: str
    text: Callable[[dict], str]
    left: bool = False
    best: Callable[[list[float]], float] | None = None
    key: str = ""


def _or_nothing(key: str, form: Callable) -> Callable[[dict], str]:
    return lambda row: NOTHING if row[key] is None else form(row[key])


def _range(key: str, form: Callable[[float], str]) -> Callable[[dict], str]:
    """Of a list by rank: one figure where all ranks show the same, else least and most."""

    def text(row: dict) -> str:
        found = least_median_most(row[key])
        if found is None:
            return NOTHING
        least, most = form(found[0]), form(found[2])
        return least if least == most else f"{least}-{most}"

    return text


def _lag(name: str) -> Callable[[dict], str]:
    def text(row: dict) -> str:
        found = (row["lag"] or {}).get(name)
        return NOTHING if not found or found["median"] is None else f"{found['median']} / {found['largest']}"

    return text


def _between(row: dict) -> str:
    return NOTHING if row["nodes"] == 1 else _range("between_bytes", _mega)(row)


def format_figures(value: float) -> str:
    """Three figures or all of the whole ones: 0.0123, 1.23, 12.3, 1,235."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def _mega(value: float) -> str:
    return format_figures(value / 1e6)


def _mib(value: float) -> str:
    return format_figures(value / MIB)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


# In groups that stay together where the width allows.
WHAT = (
    Column("strategy", "", _or_nothing("strategy", str), left=True),
    Column("exact", "", _or_nothing("exact", lambda exact: "yes" if exact else "no"), left=True),
    Column("ended", "", lambda row: row["outcome"], left=True),
)
SCORES = (
    Column("test loss", "last", _or_nothing("test_loss", "{:.4f}".format), best=min, key="test_loss"),
    Column("test loss", "best", _or_nothing("best_test_loss", "{:.4f}".format), best=min, key="best_test_loss"),
    Column("accuracy", "last, %", _or_nothing("test_accuracy", _percent), best=max, key="test_accuracy"),
    Column("accuracy", "best, %", _or_nothing("best_test_accuracy", _percent), best=max, key="best_test_accuracy"),
    Column("difference", "points", _or_nothing("accuracy_difference", lambda value: f"{100 * value:+.2f}")),
)
SPEED = (
    Column("ranks", "", _or_nothing("ranks", str)),
    Column("iterations", "", _or_nothing("iterations", lambda count: f"{count:,}")),
    Column("time", "s", _or_nothing("seconds", format_figures), best=min, key="seconds"),
    Column("images/s", "", _or_nothing("images_per_s", "{:,.0f}".format), best=max, key="images_per_s"),
    Column("speed", "× first", _or_nothing("speed_ratio", "{:.2f}".format)),
    Column("exposed", "%", _or_nothing("exposed_share", lambda value: f"{100 * value:.1f}"), key="exposed_share"),
)
TRAFFIC = (
    Column("sent", "MB a rank", _range("bytes_sent", _mega)),
    Column("received", "MB a rank", _range("bytes_received", _mega)),
    Column("between nodes", "MB a rank", _between),
    Column("updates/s", "by rank", _range("updates_per_s", format_figures)),
    Column("clock lag", "median / most", _lag("clock")),
    Column("version lag", "median / most", _lag("version")),
)
MEMORY = (
    Column("held", "MiB a rank", _range("held_bytes", _mib)),
    Column("peak memory", "MiB a rank", _range("peak_bytes", _mib)),
)
GROUPS = (WHAT, SCORES, SPEED, TRAFFIC, MEMORY)
NAME = Column("run", "", lambda row: row["name"], left=True)


@dataclass(frozen=True, slots=True)
class Block:
    """columns, and for each the lines of each cell. ``bold``: (row, column) of what is best."""

    columns: Sequence[Column]
    cells: Sequence[Sequence[Sequence[str]]]  # [row][column][line]
    bold: frozenset

    @property
    def widths(self) -> list[int]:
        return [
            max(len(line) for line in (column.title, column.unit, *(line for row in self.cells for line in row[i])))
            for i, column in enumerate(self.columns)
        ]

    @property
    def width(self) -> int:
        return sum(self.widths) + GAP * (len(self.columns) - 1)


def blocks_of(rows: Sequence[dict], width: int) -> list[Block]:
    """The columns that any run has a figure for, in as many blocks as a line of ``width`` makes necessary."""
    words = min(max(LEAST_WORDS, (width - FIGURES) // 2), MOST_WORDS)
    blocks: list[Block] = []
    for group in GROUPS:
        told = [column for column in group if any(column.text(row) != NOTHING for row in rows)]
        whole = _block(rows, [NAME, *told], words).width <= width
        for part in [told] if whole else [[column] for column in told]:
            wider = _block(rows, [*(blocks[-1].columns if blocks else (NAME,)), *part], words)
            if blocks and wider.width > width:
                blocks.append(_block(rows, [NAME, *part], words))
            elif part:
                blocks[-1:] = [wider]
    return blocks


def _block(rows: Sequence[dict], columns: Sequence[Column], words: int) -> Block:
    cells = [[_lines(column, row, words) for column in columns] for row in rows]
    bold = {(i, j) for j, column in enumerate(columns) for i in _best(rows, column)}
    return Block(columns, cells, frozenset(bold))


def _lines(column: Column, row: dict, words: int) -> list[str]:
    text = column.text(row)
    if not column.left:
        return [text]
    return textwrap.wrap(text, words, break_on_hyphens=" " not in text) or [""]


def _best(rows: Sequence[dict], column: Column) -> list[int]:
    """The rows that have the best figure; none where that says nothing."""
    values = [row[column.key] for row in rows if column.key and row[column.key] is not None]
    if column.best is None or len(set(values)) < 2:
        return []
    return [i for i, row in enumerate(rows) if row[column.key] == column.best(values)]


# ── plain ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def plain_lines(rows: Sequence[dict], width: int) -> list[str]:
    lines: list[str] = []
    for block in blocks_of(rows, width):
        widths = block.widths
        heads = [[column.title, column.unit] for column in block.columns]
        lines += ["", *filter(None, _plain_row(heads, block.columns, widths))]
        for cells in block.cells:
            lines += _plain_row(cells, block.columns, widths)
    return lines[1:]


def _plain_row(cells, columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    height = max(map(len, cells))
    padded = [[*lines, *[""] * (height - len(lines))] for lines in cells]
    aligned = [
        [line.ljust(width) if column.left else line.rjust(width) for line in lines]
        for lines, column, width in zip(padded, columns, widths, strict=True)
    ]
    return [(" " * GAP).join(line).rstrip() for line in zip(*aligned, strict=True)]


# ── for a terminal ────────────────────────────────────────────────────────────────────────────────────────────────────
def rich_tables(rows: Sequence[dict], width: int) -> list:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    tables = []
    for block in blocks_of(rows, width - GAP):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for column in block.columns:
            head = Text(column.title) + Text(f"\n{column.unit}" if column.unit else "", style="dim")
            table.add_column(head, justify="left" if column.left else "right", no_wrap=True)
        for i, cells in enumerate(block.cells):
            table.add_row(*(Text("\n".join(lines), _style(block, i, j, lines)) for j, lines in enumerate(cells)))
        tables.append(table)
    return tables


def _style(block: Block, row: int, column: int, lines: Sequence[str]) -> str:
    if (row, column) in block.bold:
        return "bold green"
    return "dim" if lines == [NOTHING] else "bold" if column == 0 else ""


# ── for other programs ────────────────────────────────────────────────────────────────────────────────────────────────
def csv_text(rows: Sequence[dict]) -> str:
    """A line a run; of lists by rank the least and the most."""
    flat = [_flat(row) for row in rows]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue()


def _flat(row: dict) -> dict:
    flat: dict = {}
    for name in FIELDS:
        value = row[name]
        if name == "lag":
            for what in ("clock", "version"):
                found = (value or {}).get(what) or {}
                flat |= {f"{what}_lag_{kind}": found.get(kind) for kind in ("median", "largest")}
        elif name in LISTS:
            least, _, most = least_median_most(value) or (None, None, None)
            flat |= {f"{name}_least": least, f"{name}_most": most}
        else:
            flat[name] = value
    return flat


LISTS = {name for name in FIELDS if name in ("held_bytes", "updates_per_s")} | set(FIELDS[FIELDS.index("lag") + 1 :])
