"""The list of runs as tables that fit the terminal, as JSON and as CSV."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from ringtrain import __version__
from ringtrain.config.option import kind_of
from ringtrain.config.record import config_fields
from ringtrain.errors import plain
from ringtrain.report.comparison.rows import METRICS
from ringtrain.report.events import Iteration
from ringtrain.runs.conditions import FRACTIONS, as_text, differing
from ringtrain.runs.summary import RESULTS, RunSummary
from ringtrain.show import tables
from ringtrain.show.tables import NOTHING, Column
from ringtrain.template import escaped

MINUTE = len("2026-01-31 23:59")  # characters of a date that are shown
PERCENT, COUNT = "{:.2%}", "{:,.0f}"
NAME = Column("name", "run", left=True)
OUTCOME = Column("outcome", "outcome", left=True)
SCORES = (
    Column("test_loss", "test_loss", "", "{:.4f}", min),
    Column("test_accuracy", "test_accuracy", "", PERCENT, max),
    *(Column(name, name, "", PERCENT, max) for name in METRICS if name in FRACTIONS),
    *(Column(name, name, "", "{:.4g}", max if name == "r2" else min) for name in METRICS if name not in FRACTIONS),
)
WORK = (
    *(Column(name, name, "", COUNT) for name in ("epoch", "iteration", "images_per_s", "ranks")),
    Column("date", "date", "", lambda date: date[:MINUTE], left=True),
)


def run_columns(runs: Sequence[RunSummary]) -> tuple[list[tuple[Column]], list[dict]]:
    """Return groups of columns, and rows of these: results, and the options in which the runs differ."""
    columns = (OUTCOME, *SCORES, *map(_option, differing(runs)), *WORK)
    return [(column,) for column in columns], [{**run.options, **run.results} for run in runs]


def _option(name: str) -> Column:
    spec = config_fields()[name]
    number = kind_of(spec) in (int, float) and not isinstance(spec.default, tuple)
    return Column(name, name, "", _words, left=not number)


def _words(value) -> str:
    if value == []:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else plain(str(as_text(value)))


def json_text(runs: Sequence[RunSummary], notes: Sequence[str]) -> str:
    """Return all results and options, the names of those that differ, and the notes."""
    rows = [{**run.results, "folder": run.folder, "problem": run.problem, "options": run.options} for run in runs]
    content = {"ringtrain": __version__, "rows": rows, "differing": differing(runs), "notes": list(notes)}
    return tables.json_text(content)


def csv_text(runs: Sequence[RunSummary]) -> str:
    """Return a line a run, with all results and options."""
    return _text((*RESULTS, "folder", "problem", *config_fields()), map(_flat, runs))


def _flat(run: RunSummary) -> dict:
    options = {name: as_text(value) for name, value in run.options.items()}
    return {**options, **run.results, "folder": run.folder, "problem": run.problem}


def iterations_text(rows: Sequence[dict]) -> str:
    """Return a line an iteration; the scores of an evaluation are on the line of its iteration.

    ``rows``: of :func:`ringtrain.report.comparison.logs.read_iterations`
    """
    return _text(dict.fromkeys(name for row in rows for name in row) or [each.name for each in fields(Iteration)], rows)


def _text(names: Iterable[str], rows: Iterable[Mapping]) -> str:
    """Return rows as CSV under a head of these names. It may go to a terminal, so texts are plain there too."""
    plain_rows = (
        {name: escaped(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
    )
    return tables.csv_text(names, plain_rows)
