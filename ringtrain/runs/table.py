"""The list of runs as tables that fit the terminal, as JSON and as CSV."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields

from rich.table import Table

from ringtrain import __version__, tables
from ringtrain.config.record import config_fields, default_of, kind_of
from ringtrain.errors import plain
from ringtrain.report.comparison.rows import METRICS, NOTHING
from ringtrain.report.comparison.table import Column, comparison_tables
from ringtrain.report.events import Iteration
from ringtrain.runs.conditions import FRACTIONS, as_text, differing
from ringtrain.runs.summary import RESULTS, RunSummary
from ringtrain.template import escaped

MINUTE = len("2026-01-31 23:59")  # characters of a date that are shown


def _column(name: str, form: Callable, best: Callable | None = None, left: bool = False) -> Column:
    """Return the column of a result or an option, under the name by which conditions know it."""

    def text(row: dict) -> str:
        return NOTHING if row.get(name) in (None, []) else form(row[name])

    return Column(name, "", text, left, best, key=name if best else "")


PERCENT, COUNT = "{:.2%}".format, "{:,.0f}".format
OUTCOME = _column("outcome", str, left=True)
SCORES = (
    _column("test_loss", "{:.4f}".format, best=min),
    _column("test_accuracy", PERCENT, best=max),
    *(_column(name, PERCENT, best=max) for name in METRICS if name in FRACTIONS),
    *(_column(name, "{:.4g}".format, best=max if name == "r2" else min) for name in METRICS if name not in FRACTIONS),
)
WORK = (
    *(_column(name, COUNT) for name in ("epoch", "iteration", "images_per_s", "ranks")),
    _column("date", lambda date: date[:MINUTE], left=True),
)


def run_tables(runs: Sequence[RunSummary], width: int, framed: bool) -> list[Table]:
    """Return the runs in as many tables as lines of ``width`` need: results, and the options in which they differ."""
    rows = [{**run.options, **run.results} for run in runs]
    columns = (OUTCOME, *SCORES, *map(_option, differing(runs)), *WORK)
    return comparison_tables(rows, width, framed, [(column,) for column in columns])


def _option(name: str) -> Column:
    spec = config_fields()[name]
    number = kind_of(spec) in (int, float) and not isinstance(default_of(spec), tuple)
    return _column(name, _words, left=not number)


def _words(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else plain(str(as_text(value)))


def json_text(runs: Sequence[RunSummary], notes: Sequence[str]) -> str:
    """Return all results and options, the names of those that differ, and the notes."""
    rows = [{**run.results, "folder": run.folder, "problem": run.problem, "options": run.options} for run in runs]
    found = {"ringtrain": __version__, "rows": rows, "differing": differing(runs), "notes": list(notes)}
    return json.dumps(found, indent=1) + "\n"


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
    names = dict.fromkeys(name for row in rows for name in row)
    return _text(names or [each.name for each in fields(Iteration)], rows)


def _text(names: Collection[str], rows: Iterable[dict]) -> str:
    """Return rows as CSV under a head of these names. It may go to a terminal, so texts are plain there too."""
    return tables.csv_text(names, ([_cell(row.get(name)) for name in names] for row in rows))


def _cell(value):
    return escaped(value) if isinstance(value, str) else value
