"""The page: one run whole, or several beside one another and then each by itself."""

from collections.abc import Iterable, Sequence
from functools import partial

from ringtrain import __version__
from ringtrain.report.comparison.plot import comparison_figure
from ringtrain.report.comparison.rows import NOTHING, notes_of, rows_of
from ringtrain.report.comparison.table import GROUPS
from ringtrain.report.figure import date_of, few, title_of
from ringtrain.report.page import sections, texts
from ringtrain.report.page.figures import inline
from ringtrain.report.page.html import Html, items, joined, table, tag
from ringtrain.report.page.inputs import ReportedRun
from ringtrain.report.page.sections import heading, setting
from ringtrain.report.page.style import CSS

# The browser itself then refuses whatever a name or a note of a run might smuggle in.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
OF_ONE = (
    sections.communication,
    sections.timeline,
    sections.classes,
    sections.configuration,
    sections.environment,
    sections.notes_and_end,
    sections.left_out,
)
FACTS = ("version", "date", "hosts", "ranks", "nodes", "device", "mpi", "job", "data", "train_examples", "strategy")
NOT_COMPARED = ("out",)  # the folder: the run's name says it


def report_page(runs: Sequence[ReportedRun], date: str) -> str:
    """Return the page as one HTML document without a request to anywhere. ``date``: of the report"""
    body = _of_one(runs[0]) if len(runs) == 1 else _of_several(runs)
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


def _of_one(run: ReportedRun) -> Iterable[Html]:
    yield heading(run.log.name, 1)
    yield from _subtitle(run)
    yield sections.glance(rows_of([run.log])[0])
    yield from filter(None, (section(run, 2) for section in (sections.curves, *OF_ONE)))


def _subtitle(run: ReportedRun) -> Iterable[Html]:
    start = run.log.start
    version = f"ringtrain {start['version']}" if start.get("version") else ""
    where = " · ".join(filter(None, (date_of(start), few(start.get("hosts") or []), version)))
    yield tag("p", title_of(start))
    yield tag("p", where, class_="pale")
    if start.get("command"):
        yield tag("pre", start["command"])


def _of_several(runs: Sequence[ReportedRun]) -> Iterable[Html]:
    logs = [run.log for run in runs]
    rows = rows_of(logs)
    yield heading(f"{len(runs)} runs: {few(log.name for log in logs)}", 1)
    yield heading(texts.CURVES(), 2)
    yield inline(partial(comparison_figure, logs, rows, tall=True), texts.CURVES())
    yield heading("Figures", 2)
    yield from _figures(rows)
    yield heading("What differs", 2)
    yield _differences(runs)
    notes = notes_of(logs, rows)
    if notes:
        yield joined([heading("Notes", 2), items(notes)])
    for run, row in zip(runs, rows, strict=True):
        yield heading(run.log.name, 2)
        yield from _subtitle(run)
        yield sections.glance(row)
        yield from filter(None, (section(run, 3) for section in OF_ONE))


def _figures(rows: Sequence[dict]) -> Iterable[Html]:
    """Return the tables of `ringtrain compare`: the columns that any run has a figure for."""
    for group in GROUPS:
        shown = [column for column in group if any(column.text(row) != NOTHING for row in rows)]
        if shown:
            head = ["run", *(" ".join(filter(None, (column.title, column.unit))) for column in shown)]
            left = 1 + sum(column.left for column in shown)
            yield table(head, ([row["name"], *(column.text(row) for column in shown)] for row in rows), left)


def _differences(runs: Sequence[ReportedRun]) -> Html:
    """Return a line for each fact or setting that is not the same in all runs."""
    told = [_facts(run) for run in runs]
    keys = dict.fromkeys(key for each in told for key in each)
    lines = [[key, *(each.get(key, NOTHING) for each in told)] for key in keys]
    different = [line for line in lines if len(set(line[1:])) > 1]
    if not different:
        return tag("p", "no setting and no fact of the environment differs")
    return table(["", *(run.log.name for run in runs)], different, 1 + len(runs))


def _facts(run: ReportedRun) -> dict[str, str]:
    start = run.log.start | {"date": date_of(run.log.start), "hosts": few(run.log.start.get("hosts") or [])}
    found = {key: setting(start.get(key) or None) for key in FACTS}
    return found | {key: setting(value) for key, value in sorted(run.config.items()) if key not in NOT_COMPARED}
