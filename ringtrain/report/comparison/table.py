"""A comparison as tables that fit the terminal, each with the runs' names in front, and as CSV."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from ringtrain import tables
from ringtrain.report.comparison.over_seeds import COSTS
from ringtrain.report.comparison.rows import FIELDS, NOTHING, least_median_most
from ringtrain.report.screen.words import FRACTIONS, metric_name
from ringtrain.tables import cell, plain_table, width_of

MIB = 1 << 20
LEAST_WORDS, MOST_WORDS = 16, 34  # width of names and strategies, which wrap
FIGURES = 34  # columns that most groups need for the rest


@dataclass(frozen=True, slots=True)
class Column:
    """A column. title, unit: two lines above it. text: of a row, NOTHING if the run has none; best: selects the bold
    figure."""

    title: str
    unit: str
    text: Callable[[dict], str]
    left: bool = False
    best: Callable[[list[float]], float] | None = None
    key: str = ""


def mean_sd(value: float, sd: float | None, decimals: int | None = None) -> str:
    """Format a mean and its standard deviation, by default with two figures of the deviation: 38.4 ± 1.2."""
    if decimals is not None:
        return f"{value:.{decimals}f} ± {NOTHING if sd is None else f'{sd:.{decimals}f}'}"
    if not sd:
        return f"{format_figures(value)} ± {NOTHING if sd is None else 0}"
    decimals = min(max(0, 1 - math.floor(math.log10(sd))), 4)
    return f"{value:,.{decimals}f} ± {sd:,.{decimals}f}"


def _mean(key: str, scale: float = 1.0, decimals: int | None = None) -> Callable[[dict], str]:
    def text(row: dict) -> str:
        sd = row[f"{key}_sd"]
        if row[key] is None:
            return NOTHING
        return mean_sd(scale * row[key], None if sd is None else scale * sd, decimals)

    return text


def _or_nothing(key: str, form: Callable) -> Callable[[dict], str]:
    return lambda row: NOTHING if row[key] is None else form(row[key])


def _range(key: str, form: Callable[[float], str]) -> Callable[[dict], str]:
    """Format a list by rank: one figure if all ranks have the same, else least and most."""

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
    """Format the sum over ranks: what the network between nodes has carried."""
    found = row["between_bytes"]
    return NOTHING if row["nodes"] == 1 or not found or None in found else _mega(sum(found))


def format_figures(value: float) -> str:
    """Format three significant figures, or all of a whole number: 0.0123, 1.23, 12.3, 1,235."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def _mega(value: float) -> str:
    return format_figures(value / 1e6)


def _mib(value: float) -> str:
    return format_figures(value / MIB)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


# Groups of columns that stay together if the width allows.
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
    *(Column(metric_name(name), "%", _or_nothing(name, _percent), best=max, key=name) for name in FRACTIONS),
    *(
        Column(metric_name(name), "", _or_nothing(name, "{:.4g}".format), best=min, key=name)
        for name in ("rmse", "mae")
    ),
    Column(metric_name("r2"), "", _or_nothing("r2", "{:.4f}".format), best=max, key="r2"),
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
    Column("between nodes", "MB, all ranks", _between),
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


# ── of variants over seeds ────────────────────────────────────────────────────────────────────────────────────────────
def _ended(row: dict) -> str:
    return str(row["runs"]) if row["ended"] == row["runs"] else f"{row['ended']} of {row['runs']}"


def _fronts(row: dict) -> str:
    return ", ".join(name.removeprefix("pareto_") for name in COSTS if row[name]) or NOTHING


def _mean_between(row: dict) -> str:
    return NOTHING if row["nodes"] == 1 else _mean("between_bytes", 1e-6)(row)


def _mean_difference(row: dict) -> str:
    text = _mean("accuracy_difference", 100, 2)(row)
    return text if text == NOTHING or text.startswith("-") else f"+{text}"


VARIANT_GROUPS = (
    (*WHAT[:2], Column("seeds", "", _ended), Column("Pareto", "front", _fronts, left=True)),
    (
        Column("test loss", "last", _mean("test_loss", decimals=4), best=min, key="test_loss"),
        Column("test loss", "best", _mean("best_test_loss", decimals=4), best=min, key="best_test_loss"),
        Column("accuracy", "last, %", _mean("test_accuracy", 100, 2), best=max, key="test_accuracy"),
        Column("accuracy", "best, %", _mean("best_test_accuracy", 100, 2), best=max, key="best_test_accuracy"),
        *(Column(metric_name(name), "%", _mean(name, 100, 2), best=max, key=name) for name in FRACTIONS),
        *(Column(metric_name(name), "", _mean(name), best=min, key=name) for name in ("rmse", "mae")),
        Column(metric_name("r2"), "", _mean("r2", decimals=4), best=max, key="r2"),
        Column("difference", "points", _mean_difference),
    ),
    (
        SPEED[0],
        Column("iterations", "", _mean("iterations")),
        Column("time", "s", _mean("seconds"), best=min, key="seconds"),
        Column("images/s", "", _mean("images_per_s"), best=max, key="images_per_s"),
        Column("speed", "× first", _mean("speed_ratio", decimals=2)),
        Column("exposed", "%", _mean("exposed_share", 100, 1)),
    ),
    (
        Column("sent", "MB, all ranks", _mean("bytes_sent", 1e-6), best=min, key="bytes_sent"),
        Column("received", "MB, all ranks", _mean("bytes_received", 1e-6)),
        Column("between nodes", "MB, all ranks", _mean_between),
        Column("held", "MiB, most", _mean("held_bytes", 1 / MIB)),
        Column("peak memory", "MiB, most", _mean("peak_bytes", 1 / MIB)),
    ),
)
VARIANT_NAME = Column("variant", "", lambda row: row["name"], left=True)


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def comparison_tables(
    rows: Sequence[dict],
    width: int,
    framed: bool = False,
    groups: Sequence[Sequence[Column]] = GROUPS,
    name: Column = NAME,
) -> list[Table]:
    """Return the columns that any row has a figure for, in as many tables as lines of ``width`` need.

    ``framed``: with a line under the titles, for a terminal; ``name``: the first column of each table
    """
    words = min(max(LEAST_WORDS, (width - FIGURES) // 2), MOST_WORDS)
    names = width_of(_table(rows, [name], words, framed))
    chosen: list[list[Column]] = [[]]
    room = width - names  # in the last table
    for group in groups:
        shown = [column for column in group if any(column.text(row) != NOTHING for row in rows)]
        needs = {column: width_of(_table(rows, [name, column], words, framed)) - names for column in shown}
        whole = sum(needs.values()) <= width - names
        for part in [shown] if whole else [[column] for column in shown]:
            needed = sum(needs[column] for column in part)
            if chosen[-1] and needed > room:
                chosen.append([])
                room = width - names
            chosen[-1] += part
            room -= needed
    return [_table(rows, [name, *columns], words, framed) for columns in chosen if columns]


def variant_tables(rows: Sequence[dict], width: int, framed: bool = False) -> list[Table]:
    """Return the same of variants over seeds: means and standard deviations."""
    return comparison_tables(rows, width, framed, VARIANT_GROUPS, VARIANT_NAME)


def _table(rows: Sequence[dict], columns: Sequence[Column], words: int, framed: bool) -> Table:
    """Return a table with the names in the first column. ``words``: the most characters of names and strategies."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)) if framed else plain_table()
    units = any(column.unit for column in columns)
    for column in columns:
        head = Text(column.title) + Text(f"\n{column.unit}" if units else "", style="dim")
        if column.left:
            table.add_column(head, max_width=words, overflow="fold")
        else:
            table.add_column(head, justify="right", no_wrap=True)
    bold = {(i, column) for column in columns for i in _best(rows, column)}
    for i, row in enumerate(rows):
        cells = [(column.text(row), column) for column in columns]
        table.add_row(*(cell(text, _style(text, column is columns[0], (i, column) in bold)) for text, column in cells))
    return table


def _style(text: str, is_name: bool, best: bool) -> str:
    if best:
        return "bold green"
    return "dim" if text == NOTHING else "bold" if is_name else ""


def _best(rows: Sequence[dict], column: Column) -> list[int]:
    """Return the rows with the best figure; none if all have the same one."""
    values = [row[column.key] for row in rows if column.key and row[column.key] is not None]
    if column.best is None or len(set(values)) < 2:
        return []
    return [i for i, row in enumerate(rows) if row[column.key] == column.best(values)]


# ── for other programs ────────────────────────────────────────────────────────────────────────────────────────────────
def csv_text(rows: Sequence[dict], variants: Sequence[dict] = ()) -> str:
    """Return a line a run; lists by rank become the least and the most. Lines of ``variants`` follow, whose ``kind`` is
    "mean", and that of runs "run"."""
    flat = [_flat(row) for row in rows]
    if variants:
        flat = [{"kind": "run", **row} for row in flat]
        flat += [{"kind": "mean", **row, "seeds": " ".join(map(str, row["seeds"]))} for row in variants]
    names = list(dict.fromkeys(name for row in flat for name in row))
    return tables.csv_text(names, ([row.get(name) for name in names] for row in flat))


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
