"""The sections of the page about one run: each yields its parts as HTML, none where the run has nothing for it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median

from ringtrain.config.record import config_fields
from ringtrain.humanize import RATE, format_seconds, plural
from ringtrain.report.comparison.table import MIB, figures_in, format_figures
from ringtrain.report.figure import date_of, few
from ringtrain.report.page.figures import MOST_BUCKETS, buckets_figure, confusion_figure
from ringtrain.report.page.inputs import BY_CLASS, ClassResult, ReportedRun
from ringtrain.report.page.timeline import MOST_RANKS, timeline_figure
from ringtrain.report.plots import curves_figure
from ringtrain.report.screen.words import accuracy_percent, clock, metric_name
from ringtrain.show.figures import inline
from ringtrain.show.html import Html, columns_table, facts, items, table, tag
from ringtrain.show.tables import NOTHING, Column

CURVES, COMMUNICATION, TIMELINE = "Learning curves", "Communication", "Timeline of the ranks"
CLASSES = "Results by class"
MOST_CLASSES = 50  # lines of a table
Parts = Iterator[Html]


# ── the run at a glance ───────────────────────────────────────────────────────────────────────────────────────
GLANCE = (
    Column("test_accuracy", "test accuracy", "", accuracy_percent),
    Column("best_test_accuracy", "best", "", accuracy_percent),
    Column("perplexity", "perplexity", "", "{:.4g}"),
    Column("test_loss", "test loss", "", "{:.4f}"),
    Column("images_per_s", RATE, "", "{:,.0f}"),
    Column("seconds", "time", "", lambda seconds: clock(seconds) if seconds >= 60 else format_seconds(seconds)),
    Column("exposed_share", "exposed communication", "", "{:.1%}"),
    Column("outcome", "ended"),
)


def glance(row: Mapping) -> Html:
    """Return the figures that matter most. ``row``: of the comparison"""
    known = [column for column in GLANCE if row[column.key] is not None]
    shown = (tag("div", tag("b", column.text(row)), tag("span", column.title)) for column in known)
    return tag("div", *shown, class_="figures")


def curves(run: ReportedRun) -> Parts:
    if run.log.train:
        yield inline(partial(curves_figure, run.log), CURVES)


# ── communication ─────────────────────────────────────────────────────────────────────────────────────────────
def communication(run: ReportedRun) -> Parts:
    buckets = (run.log.exchange or {}).get("buckets") or []
    share = (run.log.end or {}).get("exposed_share")
    if share is not None and (run.log.start.get("ranks") or 0) > 1:
        yield tag("p", f"{100 * share:.1f} % of the training time, rank 0 waited for communication.")
    if buckets:
        yield inline(partial(buckets_figure, buckets), f"{COMMUNICATION}, {run.log.name}")
    if len(buckets) > MOST_BUCKETS:
        yield tag("p", f"the {MOST_BUCKETS} buckets of {len(buckets):,} that take longest", class_="pale")
    if run.log.ranks:
        yield _by_rank(run.log.ranks)


RANK_COLUMNS = (
    Column("images", "examples", "", format_figures),
    Column("updates", "updates", "", format_figures),
    Column("training_s", "training, s", "", format_figures),
    Column("exposed_s", "exposed, s", "", format_figures),
    Column("waited_s", "waited for examples, s", "", format_figures),
    Column("bytes_sent", "sent, MB", "", figures_in(1e6)),
    Column("bytes_received", "received, MB", "", figures_in(1e6)),
    Column("peak_bytes", "peak memory, MiB", "", figures_in(MIB)),
)


def _by_rank(ranks: Mapping) -> Html:
    """Return a line a rank; of many ranks the least, the median and the most."""
    known = [column for column in RANK_COLUMNS if ranks.get(column.key) and None not in ranks[column.key]]
    values = {column.key: ranks[column.key] for column in known}
    count = max(map(len, values.values()), default=0)
    names = [f"rank {rank}" for rank in range(count)]
    if count > MOST_RANKS:
        names = ["least", "median", "most"]
        values = {key: [min(figures), median(figures), max(figures)] for key, figures in values.items()}
    rows = [{"name": name} | {key: figures[i] for key, figures in values.items()} for i, name in enumerate(names)]
    return columns_table([Column("name", "", left=True), *known], rows)


def timeline(run: ReportedRun) -> Parts:
    traced = {rank: slices for rank, slices in run.trace.items() if slices}
    if traced:
        yield inline(partial(timeline_figure, traced), f"{TIMELINE}, {run.log.name}")
        shown = plural(min(len(traced), MOST_RANKS), "rank")
        caption = (
            f"{shown} of {len(traced)}, the last traced iterations; all of it: {run.trace_path} in "
            "https://ui.perfetto.dev"
        )
        yield tag("p", caption, class_="pale")


# ── classes ───────────────────────────────────────────────────────────────────────────────────────────────────
def classes(run: ReportedRun) -> Parts:
    evaluation = run.metrics
    if evaluation is None or not evaluation.classes:
        return
    caption = f"{evaluation.split} part, iteration {evaluation.iteration:,}: {evaluation.checkpoint}"
    yield tag("p", caption, class_="pale")
    if evaluation.confusion is not None:
        names = [each.name for each in evaluation.classes]
        yield inline(partial(confusion_figure, evaluation.confusion, names), f"{CLASSES}, {run.log.name}")
    shown: Sequence[ClassResult] = evaluation.classes
    if len(shown) > MOST_CLASSES:
        shown = sorted(shown, key=lambda result: -1.0 if result.f1 is None else result.f1)[:MOST_CLASSES]
        yield tag("p", f"the {len(shown)} classes of {len(evaluation.classes):,} with the least F1")
    head = ["class", *(metric_name(name) for name in BY_CLASS)]
    yield table(head, ([each.name, *(_value(getattr(each, name)) for name in BY_CLASS)] for each in shown))


def _value(value: float | None) -> str:
    if value is None:
        return NOTHING
    return accuracy_percent(value) if isinstance(value, float) else f"{value:,}"


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────
def configuration(run: ReportedRun) -> Parts:
    """Yield the settings: what is not default, then the rest, folded."""
    if not run.config:
        return
    defaults = {name: spec.default for name, spec in config_fields().items()}
    lines = [(key, setting(value), setting(defaults.get(key))) for key, value in sorted(run.config.items())]
    changed = [line for line in lines if line[1] != line[2]]
    usual = [line[:2] for line in lines if line[1] == line[2]]
    yield table(["setting", "value", "default"], changed, 3) if changed else tag("p", "every setting is at its default")
    if usual:
        yield tag("details", tag("summary", f"{len(usual)} settings at their defaults"), facts(usual))


def setting(value) -> str:
    if value is None or value == () or value == []:
        return NOTHING
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ",".join(map(setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def environment(run: ReportedRun) -> Parts:
    start = run.log.start
    ranks, nodes = start.get("ranks"), start.get("nodes")
    lines = [
        ("date", date_of(start)),
        ("ranks", ranks and nodes and f"{plural(ranks, 'rank')} on {plural(nodes, 'node')}"),
        ("hosts", few(start.get("hosts") or [])),
        ("device", start.get("device")),
        ("MPI", start.get("mpi")),
        ("ringtrain", start.get("version")),
        ("versions", ", ".join(f"{name} {version}" for name, version in (start.get("versions") or {}).items())),
        ("git", start.get("git")),
        ("job", start.get("job")),
        ("plug-ins", ", ".join(f"{path} (sha256 {sha})" for path, sha in (start.get("plugins") or {}).items())),
        ("run folder", run.log.folder),
        ("model", _with_count(start, "model", "parameters", "parameters")),
        ("data", _with_count(start, "data", "train_examples", "examples to train on")),
        ("strategy", start.get("strategy")),
        ("optimizer", start.get("optimizer")),
        ("rate", ", ".join(filter(None, (start.get("lr") and setting(start["lr"]), start.get("schedule"))))),
    ]
    yield facts([(name, str(value)) for name, value in lines if value])


def _with_count(start: Mapping, name: str, count: str, noun: str) -> str | None:
    if not start.get(name):
        return None
    return f"{start[name]}, {start[count]:,} {noun}" if count in start else start[name]


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────
def notes_and_end(run: ReportedRun) -> Parts:
    log = run.log
    end = [f"{log.outcome} after iteration {log.iterations:,}"]
    end += [log.failed["text"]] if log.failed else []
    weights = (log.end or {}).get("weights_sha256")
    end += [f"weights sha256 {weights}"] if weights else []
    yield items([*log.notes, *end])


def left_out(run: ReportedRun) -> Parts:
    lines = [*run.left_out, *([] if run.log.train else ["learning curves: the log has no iteration"])]
    if lines:
        yield items(lines)


OF_ONE = {
    CURVES: curves,
    COMMUNICATION: communication,
    TIMELINE: timeline,
    CLASSES: classes,
    "Configuration": configuration,
    "Environment": environment,
    "Notes and end": notes_and_end,
    "Not in this report": left_out,
}


def sections(run: ReportedRun, level: int) -> Parts:
    """Yield the sections under headings of this level; beside other runs, whose curves are in one picture, without
    curves."""
    for title, section in OF_ONE.items():
        parts = [] if section is curves and level > 2 else list(section(run))
        if parts:
            yield tag(f"h{level}", title)
            yield from parts
