"""The sections of the page about one run, each as HTML; None where the run has nothing for it."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

from ringtrain.config.record import config_fields, default_of
from ringtrain.humanize import format_seconds, plural
from ringtrain.report.comparison.rows import NOTHING
from ringtrain.report.comparison.table import format_figures
from ringtrain.report.figure import date_of, few
from ringtrain.report.page import texts
from ringtrain.report.page.figures import MOST_BUCKETS, buckets_figure, confusion_figure, inline
from ringtrain.report.page.html import Html, facts, items, joined, table, tag
from ringtrain.report.page.inputs import ReportedRun
from ringtrain.report.page.metrics import BY_CLASS, ClassResult
from ringtrain.report.page.timeline import MOST_RANKS, timeline_figure
from ringtrain.report.plots import curves_figure
from ringtrain.report.screen.words import accuracy_percent, clock, metric_name

MOST_CLASSES = 50  # lines of a table
MIB = 1 << 20


def heading(text: str, level: int) -> Html:
    return tag(f"h{level}", text)


# ── the run at a glance ───────────────────────────────────────────────────────────────────────────────────────
def glance(row: Mapping) -> Html:
    """Return the figures that matter most. ``row``: of the comparison"""
    pairs: list[tuple] = [
        (row["test_accuracy"], "test accuracy", accuracy_percent),
        (row["best_test_accuracy"], "best", accuracy_percent),
        (row["test_loss"], "test loss", "{:.4f}".format),
        (row["images_per_s"], "images/s", "{:,.0f}".format),
        (row["seconds"], "time", lambda seconds: clock(seconds) if seconds >= 60 else format_seconds(seconds)),
        (row["exposed_share"], "exposed communication", "{:.1%}".format),
        (row["outcome"], "ended", str),
    ]
    shown = [tag("div", tag("b", form(value)), tag("span", label)) for value, label, form in pairs if value is not None]
    return tag("div", *shown, class_="figures")


def curves(run: ReportedRun, level: int) -> Html | None:
    if not run.log.train:
        return None
    return joined([heading(texts.CURVES(), level), inline(partial(curves_figure, run.log), texts.CURVES())])


# ── communication ─────────────────────────────────────────────────────────────────────────────────────────────
def communication(run: ReportedRun, level: int) -> Html | None:
    buckets = (run.log.exchange or {}).get("buckets") or []
    parts: list[Html] = []
    share = (run.log.end or {}).get("exposed_share")
    if share is not None and (run.log.start.get("ranks") or 0) > 1:
        parts.append(tag("p", f"{100 * share:.1f} % of the training time, rank 0 waited for communication."))
    if buckets:
        label = f"{texts.COMMUNICATION()}, {run.log.name}"
        parts.append(inline(partial(buckets_figure, buckets), label))
    if len(buckets) > MOST_BUCKETS:
        parts.append(tag("p", f"the {MOST_BUCKETS} buckets of {len(buckets):,} that take longest", class_="pale"))
    if run.log.ranks:
        parts.append(_by_rank(run.log.ranks))
    return joined([heading(texts.COMMUNICATION(), level), *parts]) if parts else None


RANK_COLUMNS = (
    ("images", "images", 1),
    ("updates", "updates", 1),
    ("training_s", "training, s", 1),
    ("exposed_s", "exposed, s", 1),
    ("waited_s", "waited for examples, s", 1),
    ("bytes_sent", "sent, MB", 1e6),
    ("bytes_received", "received, MB", 1e6),
    ("peak_bytes", "peak memory, MiB", MIB),
)


def _by_rank(ranks: Mapping) -> Html:
    """Return a line a rank; of many ranks the least, the median and the most."""
    known = [
        (title, [value / unit for value in ranks[key]])
        for key, title, unit in RANK_COLUMNS
        if ranks.get(key) and None not in ranks[key]
    ]
    count = max((len(values) for _, values in known), default=0)
    names = [texts.RANK(rank=rank) for rank in range(count)]
    if count > MOST_RANKS:
        names = ["least", "median", "most"]
        known = [(title, [min(values), median(values), max(values)]) for title, values in known]
    rows = [[name, *(format_figures(values[i]) for _, values in known)] for i, name in enumerate(names)]
    return table(["", *(title for title, _ in known)], rows)


def timeline(run: ReportedRun, level: int) -> Html | None:
    traced = {rank: slices for rank, slices in run.trace.items() if slices}
    if not traced:
        return None
    shown = plural(min(len(traced), MOST_RANKS), "rank")
    told = (
        f"{shown} of {len(traced)}, the last traced iterations; all of it: {run.trace_path} in https://ui.perfetto.dev"
    )
    picture = inline(partial(timeline_figure, traced), f"{texts.TIMELINE()}, {run.log.name}")
    return joined([heading(texts.TIMELINE(), level), picture, tag("p", told, class_="pale")])


# ── classes ───────────────────────────────────────────────────────────────────────────────────────────────────
def classes(run: ReportedRun, level: int) -> Html | None:
    found = run.metrics
    if found is None or not found.classes:
        return None
    told = f"{found.split} part, iteration {found.iteration:,}: {found.checkpoint}"
    parts = [heading(texts.CLASSES(), level), tag("p", told, class_="pale")]
    if found.confusion is not None:
        names = [each.name for each in found.classes]
        parts.append(inline(partial(confusion_figure, found.confusion, names), f"{texts.CLASSES()}, {run.log.name}"))
    shown = sorted(found.classes, key=_f1)[:MOST_CLASSES] if len(found.classes) > MOST_CLASSES else found.classes
    if len(shown) < len(found.classes):
        parts.append(tag("p", f"the {len(shown)} classes of {len(found.classes):,} with the least F1"))
    head = ["class", *(metric_name(name) for name in BY_CLASS)]
    return joined([*parts, table(head, ([each.name, *map(_value, each.values)] for each in shown))])


def _f1(found: ClassResult) -> float:
    return -1.0 if found.f1 is None else found.f1


def _value(value: float | None) -> str:
    if value is None:
        return NOTHING
    return accuracy_percent(value) if isinstance(value, float) else f"{value:,}"


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────
def configuration(run: ReportedRun, level: int) -> Html | None:
    """Return the settings: what is not default, then the rest, folded."""
    if not run.config:
        return None
    defaults = {name: default_of(spec) for name, spec in config_fields().items()}
    lines = [(key, setting(value), setting(defaults.get(key))) for key, value in sorted(run.config.items())]
    changed = [line for line in lines if line[1] != line[2]]
    usual = [line[:2] for line in lines if line[1] == line[2]]
    parts = [
        table(["setting", "value", "default"], changed, 3) if changed else tag("p", "every setting is at its default")
    ]
    if usual:
        parts.append(tag("details", tag("summary", f"{len(usual)} settings at their defaults"), facts(usual)))
    return joined([heading("Configuration", level), *parts])


def setting(value) -> str:
    """Return a setting as a person writes it."""
    if value is None or value == () or value == []:
        return NOTHING
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ",".join(map(setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def environment(run: ReportedRun, level: int) -> Html:
    start = run.log.start
    ranks, nodes = start.get("ranks"), start.get("nodes")
    found = [
        ("date", date_of(start)),
        ("ranks", ranks and nodes and f"{plural(ranks, 'rank')} on {plural(nodes, 'node')}"),
        ("hosts", few(start.get("hosts") or [])),
        ("device", start.get("device")),
        ("MPI", start.get("mpi")),
        ("ringtrain", start.get("version")),
        ("versions", ", ".join(f"{name} {version}" for name, version in (start.get("versions") or {}).items())),
        ("job", start.get("job")),
        ("plug-ins", ", ".join(f"{path} (sha256 {sha})" for path, sha in (start.get("plugins") or {}).items())),
        ("run folder", run.log.folder),
        ("model", _with_count(start, "model", "parameters", "parameters")),
        ("data", _with_count(start, "data", "train_examples", "examples to train on")),
        ("strategy", start.get("strategy")),
        ("optimizer", start.get("optimizer")),
        ("rate", ", ".join(filter(None, (start.get("lr") and setting(start["lr"]), start.get("schedule"))))),
    ]
    known = [(name, str(value)) for name, value in found if value]
    return joined([heading("Environment", level), facts(known)])


def _with_count(start: Mapping, name: str, count: str, noun: str) -> str | None:
    if not start.get(name):
        return None
    return f"{start[name]}, {start[count]:,} {noun}" if count in start else start[name]


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────
def notes_and_end(run: ReportedRun, level: int) -> Html:
    log = run.log
    end = [f"{log.outcome} after iteration {log.iterations:,}"]
    end += [log.failed["text"]] if log.failed else []
    weights = (log.end or {}).get("weights_sha256")
    end += [f"weights sha256 {weights}"] if weights else []
    return joined([heading("Notes and end", level), items([*log.notes, *end])])


def left_out(run: ReportedRun, level: int) -> Html | None:
    lines: Sequence[str] = [*run.left_out, *([] if run.log.train else ["learning curves: the log has no iteration"])]
    return joined([heading("Not in this report", level), items(lines)]) if lines else None
