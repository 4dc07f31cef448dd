"""The page: one run whole, or several beside one another and then each by itself."""

from collections.abc import Iterable, Sequence
from functools import partial

from ringtrain import __version__
from ringtrain.report.comparison.plot import comparison_figure
from ringtrain.report.comparison.rows import notes_of, rows_of
from ringtrain.report.comparison.table import GROUPS, NAME
from ringtrain.report.figure import date_of, few, title_of
from ringtrain.report.page.inputs import ReportedRun
from ringtrain.report.page.sections import CURVES, glance, sections, setting
from ringtrain.report.page.style import CSS
from ringtrain.show.figures import inline
from ringtrain.show.html import Html, columns_table, items, table, tag
from ringtrain.show.tables import NOTHING, shown_columns

# The browser itself then refuses whatever a name or a note of a run might smuggle in.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
FACTS = ("version", "date", "hosts", "ranks", "nodes", "device", "mpi", "job", "data", "train_examples", "strategy")
NOT_COMPARED = ("out",)  # the folder: the run's name says it


def report_page(runs: Sequence[ReportedRun], date: str) -> str:
    """Return the page as one HTML document without a request to anywhere. ``date``: of the report"""
    first, rows = runs[0], rows_of([run.log for run in runs])
    body = _of_several(runs, rows) if len(runs) > 1 else (tag("h1", first.log.name), *_about(first, rows[0], 2))
    title = few(run.log.name for run in runs)
    head = [
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("title", f"{title} · ringtrain"),
        tag("style", Html(CSS)),
    ]
    foot = tag("p", tag("small", f"made by ringtrain {__version__}, {date}"))
    page = tag("html", tag("head", *head), tag("body", *body, foot), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _about(run: ReportedRun, row: dict, level: int) -> Iterable[Html]:
    """Yield all about one run. ``level``: of its headings"""
    start = run.log.start
    version = f"ringtrain {start['version']}" if start.get("version") else ""
    where = " · ".join(filter(None, (date_of(start), few(start.get("hosts") or []), version)))
    yield tag("p", title_of(start))
    yield tag("p", where, class_="pale")
    if start.get("command"):
        yield tag("pre", start["command"])
    yield glance(row)
    yield from sections(run, level)


def _of_several(runs: Sequence[ReportedRun], rows: Sequence[dict]) -> Iterable[Html]:
    logs = [run.log for run in runs]
    yield tag("h1", f"{len(runs)} runs: {few(log.name for log in logs)}")
    yield tag("h2", CURVES)
    yield inline(partial(comparison_figure, logs, rows, tall=True), CURVES)
    yield tag("h2", "Figures")
    for shown in filter(None, shown_columns(GROUPS, rows)):  # the tables of `ringtrain compare`
        yield columns_table([NAME, *shown], rows)
    yield tag("h2", "What differs")
    yield _differences(runs)
    notes = notes_of(logs, rows)
    if notes:
        yield tag("h2", "Notes")
        yield items(notes)
    for run, row in zip(runs, rows, strict=True):
        yield tag("h2", run.log.name)
        yield from _about(run, row, 3)


def _differences(runs: Sequence[ReportedRun]) -> Html:
    """Return a line for each fact or setting that is not the same in all runs."""
    facts_by_run = [_facts(run) for run in runs]
    keys = dict.fromkeys(key for each in facts_by_run for key in each)
    lines = [[key, *(each.get(key, NOTHING) for each in facts_by_run)] for key in keys]
    different = [line for line in lines if len(set(line[1:])) > 1]
    if not different:
        return tag("p", "no setting and no fact of the environment differs")
    return table(["", *(run.log.name for run in runs)], different, 1 + len(runs))


def _facts(run: ReportedRun) -> dict[str, str]:
    start = run.log.start | {"date": date_of(run.log.start), "hosts": few(run.log.start.get("hosts") or [])}
    facts = {key: setting(start.get(key) or None) for key in FACTS}
    return facts | {key: setting(value) for key, value in sorted(run.config.items()) if key not in NOT_COMPARED}
