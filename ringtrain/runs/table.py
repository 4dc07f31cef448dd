"""The list of runs in its order, as tables that fit the terminal, as JSON and as CSV."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from ringtrain import __version__
from ringtrain.config.option import NEVER, kind_of
from ringtrain.config.record import config_fields
from ringtrain.errors import UsageError, nearest, plain
from ringtrain.report.comparison.rows import METRICS
from ringtrain.report.events import Iteration
from ringtrain.report.screen.words import FRACTIONS
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


def sort_runs(runs: Iterable[RunSummary], key: str | None) -> list[RunSummary]:
    """Return the runs in rising order of an option or a result, in falling order of "-NAME"; those without it are last.

    ``key``: None is by date, the newest last. Raises UsageError for an unknown name.
    """
    if key is None:
        return sorted(runs, key=lambda run: (run.value("date") or "", run.value("name")))
    name, known = key.removeprefix("-").replace("-", "_"), {*RESULTS, *config_fields()}
    if name not in known:
        raise UsageError(f"--sort {key!r}: no option or result of a run is called {name!r}; {nearest(name, known)}")
    runs = list(runs)
    ranked = [run for run in runs if run.value(name) is not None]
    ranked.sort(key=lambda run: _rank(run.value(name)), reverse=key.startswith("-"))
    return [*ranked, *(run for run in runs if run.value(name) is None)]


def _rank(value) -> tuple:
    """Return a key for the order of values of several kinds: numbers before texts."""
    return isinstance(as_text(value), str), as_text(value)


def differing(runs: Sequence[RunSummary]) -> list[str]:
    """Return the options whose values are not the same in all runs, without those about files and ``NEVER``."""
    names = [name for name, spec in config_fields().items() if not spec.metadata["about_files"]]
    known = [run.options for run in runs if run.options]
    return [name for name in names if len({as_text(options[name]) for options in known} - {NEVER}) > 1]


def as_text(value):
    """Return a list as one text, as a flag has it; any other value as it is."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


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
