"""`ringtrain report`: runs as one HTML file that needs nothing else, from the template page.html.

Text of others is escaped once, where it becomes a part of the page; its control characters, too.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

from ringtrain import __version__
from ringtrain.config.record import config_fields
from ringtrain.config.resolve import read_run_file
from ringtrain.errors import RingtrainError
from ringtrain.humanize import format_bytes, plural
from ringtrain.records import Rules, load
from ringtrain.report.comparison.logs import RunLog, read_run
from ringtrain.report.comparison.plot import comparison_figure
from ringtrain.report.comparison.rows import notes_of, rows_of
from ringtrain.report.comparison.table import GROUPS, NAME
from ringtrain.report.figure import date_of, few
from ringtrain.report.plots import curves_figure
from ringtrain.report.trace import path_of
from ringtrain.show.figures import STYLE, drawn
from ringtrain.show.tables import NOTHING, Column, shown_columns
from ringtrain.storage.files import open_nofollow
from ringtrain.template import LINES, escaped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = Path(__file__).with_name("page.html")
CONFIG, METRICS = "config.toml", "metrics.json"  # in a run folder
TITLE = "file of `ringtrain evaluate -o metrics.json`"
MOST_CLASSES = 100  # of a confusion matrix
FACTS = (
    "command", "date", "ranks", "nodes", "hosts", "device", "mpi", "version", "versions", "git", "job", "plugins",
    "model", "parameters", "data", "train_examples", "strategy", "optimizer", "lr", "schedule",
)  # fmt: skip
# Colours that the page itself decides, in light and in dark, and their stand-ins while a figure is drawn.
INK, RULES = "#010203", "#040506"
OF_PAGE = {INK: "currentColor", "#000000": "currentColor", RULES: "var(--rule)"}
INLINE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "grid.color": RULES,
    "savefig.transparent": True,
    "svg.fonttype": "none",  # text stays text: small, and found by a search
}


# ── what is read ──────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Class:
    """A class of an evaluation, by its name."""

    name: Annotated[str, Rules(key="class")]


@dataclass(frozen=True, slots=True)
class EvaluationFile:
    """An evaluation of a checkpoint, made at an iteration, on a split. classes: none if the loss has none; confusion: a
    row for each label and a column for each prediction, or None."""

    checkpoint: str
    split: str
    iteration: int
    classes: tuple[Class, ...]
    confusion: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        size = len(self.classes)
        if self.confusion is not None and [len(row) for row in self.confusion] != [size] * size:
            raise ValueError(f"confusion is not a matrix of {size} classes")


def read_metrics(path) -> EvaluationFile:
    """Read the file of an evaluation. Raises UsageError."""
    return load(EvaluationFile, path, TITLE, {"low": 0, "high": 1e18, "plain": True}, opener=open_nofollow)


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run. config: key → value; left_out: a line for each part that it lacks."""

    log: RunLog
    config: Mapping
    evaluation: EvaluationFile | None
    left_out: Sequence[str]


def read_reported(folder: Path, name: str) -> ReportedRun:
    """Read a run folder. Raises UsageError if it is none of a run, or its log cannot be read."""
    log, left_out = read_run(folder, name), list[str]()

    def optional(file: str, read: Callable, absent: str):
        """Return what a file holds; None if it is not there or cannot be read, and a line that says so."""
        try:
            return read(str(folder / file))
        except RingtrainError as error:
            left_out.append(str(error) if os.path.lexists(folder / file) else absent)
            return None

    read_config = partial(read_run_file, opener=open_nofollow)
    config = optional(CONFIG, read_config, "configuration: the folder has no config.toml") or {}
    unmeasured = f"confusion matrix: `ringtrain evaluate {folder} -o {folder}/{METRICS}` makes it"
    evaluation = optional(METRICS, read_metrics, unmeasured)
    if evaluation is not None and evaluation.confusion is None:
        left_out.append(f"confusion matrix: {folder}/{METRICS} has none, as of a loss without exclusive classes")
    elif evaluation is not None and len(evaluation.classes) > MOST_CLASSES:
        left_out.append(f"confusion matrix: of more than {MOST_CLASSES} classes; {folder}/{METRICS} has it")
    if not log.train:
        left_out.append("learning curves: the log has no iteration")
    if not (log.exchange or {}).get("buckets"):
        left_out.append("communication by bucket: the log has no record, as of one rank or a run that was cut short")
    return ReportedRun(log, config, evaluation, left_out)


# ── HTML ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
class Html(str):
    """Text that is HTML already; any other text is escaped."""

    __slots__ = ()


def tag(name: str, *inner: str, **attributes: str) -> Html:
    """Return an element. ``inner``: its parts; ``attributes``: names may end in _, as class_"""
    parts = (part if isinstance(part, Html) else escape(escaped(part, LINES)) for part in inner)
    words = "".join(f' {key.rstrip("_")}="{escape(escaped(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{words}>{''.join(parts)}</{name}>")


def table(columns: Sequence[Column], rows: Iterable, bold: int = 0) -> Html:
    """Return a table; units follow the titles. ``bold``: rows, the first ones"""
    kinds = ["text" if column.left else "figure" for column in columns]
    titles = [f"{column.title} {column.unit}" for column in columns]
    lines = [tag("tr", *(tag("th", title, class_=kind) for title, kind in zip(titles, kinds, strict=True)))]
    for number, row in enumerate(rows):
        cells = (tag("td", column.text(row), class_=kind) for column, kind in zip(columns, kinds, strict=True))
        lines.append(tag("tr", *cells, class_="differs" if number < bold else ""))
    return tag("div", tag("table", *lines), class_="wide")


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]], bold: int = 0) -> Html:
    return table([Column(index, title, left=True) for index, title in enumerate(head)], rows, bold)


def picture(make: "Callable[[], Figure]") -> Html:
    """Return the curves as an SVG element, in the page's colours."""
    text = drawn(make, "svg", {**STYLE, **INLINE}).decode()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    for stand_in, colour in OF_PAGE.items():
        text = text.replace(stand_in, colour)
    return tag("div", Html(text.replace("<svg", '<svg role="img" aria-label="Learning curves"', 1)), class_="wide")


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def report_page(runs: Sequence[ReportedRun], date: str) -> str:
    """Return the page as one HTML document without a request to anywhere. ``date``: of the report"""
    parts = [part for title, each in _sections(runs).items() if each for part in (tag("h2", title), *each)]
    names = few(run.log.name for run in runs)
    texts = {"names": names if len(runs) == 1 else f"{len(runs)} runs: {names}", "version": __version__, "date": date}
    page = Template(PAGE.read_text(encoding="utf-8"))
    return page.substitute({name: escape(escaped(text)) for name, text in texts.items()}, sections="\n".join(parts))


def _sections(runs: Sequence[ReportedRun]) -> dict[str, Sequence[Html]]:
    """Return the parts of the page by their headings, none where the runs have nothing for it."""
    logs = [run.log for run in runs]
    rows = rows_of(logs)
    if len(runs) == 1:
        rows[0] |= dict.fromkeys(("accuracy_difference", "speed_ratio"))  # to itself
    draw = partial(curves_figure, logs[0]) if len(runs) == 1 else partial(comparison_figure, logs, rows)
    return {
        "Results": [table([NAME, *shown], rows) for shown in shown_columns(GROUPS, rows) if shown],
        "Learning curves": [picture(draw)] if any(log.train for log in logs) else [],
        "Communication by bucket": [part for run in runs for part in _communication(run)],
        "Confusion matrix": [part for run in runs for part in _confusion(run)],
        "Options": _options(runs),
        "Environment": _environment(runs),
        "Notes": _items([*notes_of(logs, rows), *_by_run(runs, lambda run: run.log.notes)]),
        "Not in this report": _items(_by_run(runs, lambda run: run.left_out)),
    }


BUCKET_COLUMNS = (
    Column("what", "bucket", left=True),
    Column("spans", "parameters", left=True),
    Column("algorithm", "algorithm", left=True),
    Column("nbytes", "size", "", format_bytes),
    Column("total_s", "start to end,", "ms", "{:,.3g}", scale=1e3),
    Column("exposed_s", "exposed,", "ms", "{:,.3g}", scale=1e3),
)


def _communication(run: ReportedRun) -> Iterator[Html]:
    buckets = (run.log.exchange or {}).get("buckets")
    if buckets:
        yield tag("p", f"{run.log.name}: means of an iteration on rank 0; exposed is what training waits for")
        yield table(BUCKET_COLUMNS, buckets)


def _confusion(run: ReportedRun) -> Iterator[Html]:
    """Yield the matrix: a row a label, a column a prediction, coloured by the share of its row."""
    evaluation = run.evaluation
    if evaluation is None or evaluation.confusion is None or len(evaluation.classes) > MOST_CLASSES:
        return
    what = f"{evaluation.split} part, iteration {evaluation.iteration:,}: {evaluation.checkpoint}"
    yield tag("p", f"{run.log.name}: {what}")
    names = [each.name for each in evaluation.classes]
    lines = [tag("tr", *(tag("th", title) for title in ("label \\ predicted", *names)))]
    for name, counts in zip(names, evaluation.confusion, strict=True):
        shares = [math.sqrt(count / sum(counts)) if count else 0.0 for count in counts]
        styles = [f"background: rgb(31 111 184 / {60 * share:.0f}%)" for share in shares]  # legible on light and dark
        cells = (
            tag("td", f"{count:,}", class_="figure", style=style) for count, style in zip(counts, styles, strict=True)
        )
        lines.append(tag("tr", tag("th", name), *cells))
    yield tag("div", tag("table", *lines), class_="wide")


def _options(runs: Sequence[ReportedRun]) -> list[Html]:
    """Return what is not default in a run, then the rest, folded."""
    defaults = {name: setting(spec.default) for name, spec in config_fields().items()}
    keys = sorted({key for run in runs for key in run.config} - {"out"})  # the environment has the folder
    lines = [[key, defaults.get(key, NOTHING), *(setting(run.config.get(key)) for run in runs)] for key in keys]
    changed = [line for line in lines if {*line[2:]} != {line[1]}]
    usual = [line[:2] for line in lines if line not in changed]
    parts = [_beside(runs, ["option", "default"], changed)] if changed else []
    title = tag("summary", plural(len(usual), "option at its default", "options at their defaults"))
    return [*parts, tag("details", title, text_table(["option", "value"], usual))] if usual else parts


def _environment(runs: Sequence[ReportedRun]) -> list[Html]:
    by_run = [_facts(run) for run in runs]
    lines = [[name, *(str(facts[name] or NOTHING) for facts in by_run)] for name in by_run[0]]
    return [_beside(runs, [""], [line for line in lines if {*line[1:]} != {NOTHING}])]


def _facts(run: ReportedRun) -> dict[str, str | None]:
    start, trace = run.log.start, run.config.get("trace")
    known = {name: setting(start.get(name) or None) for name in FACTS}
    return known | {
        "date": date_of(start),
        "hosts": few(start.get("hosts") or []),
        "versions": ", ".join(f"{name} {version}" for name, version in (start.get("versions") or {}).items()),
        "plugins": ", ".join(f"{path} (sha256 {sha})" for path, sha in (start.get("plugins") or {}).items()),
        "folder": run.log.folder,
        "weights sha256": (run.log.end or {}).get("weights_sha256"),
        "trace": f"{path_of(trace, Path(run.log.folder))}, for https://ui.perfetto.dev"
        if isinstance(trace, str)
        else None,
    }


def _beside(runs: Sequence[ReportedRun], head: Sequence[str], lines: Sequence[Sequence[str]]) -> Html:
    """Return a table with a column a run, behind the columns of ``head``; lines in which runs differ are bold, and come
    first."""
    lines = sorted(lines, key=lambda line: len({*line[len(head) :]}) == 1)
    differing = sum(len({*line[len(head) :]}) > 1 for line in lines)
    return text_table([*head, *(run.log.name for run in runs)], lines, differing)


def setting(value) -> str:
    if value is None or value == () or value == []:
        return NOTHING
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ",".join(map(setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _by_run(runs: Sequence[ReportedRun], lines_of: Callable[[ReportedRun], Sequence[str]]) -> list[str]:
    return [line if len(runs) == 1 else f"{run.log.name}: {line}" for run in runs for line in lines_of(run)]


def _items(lines: Sequence[str]) -> list[Html]:
    return [tag("ul", *(tag("li", line) for line in lines))] if lines else []
