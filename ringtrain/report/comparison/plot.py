"""A comparison as a picture: loss and accuracy, or another metric, against time, examples and bytes; images a second;
bytes by rank.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ringtrain.errors import UsageError, nearest
from ringtrain.humanize import plural
from ringtrain.report import texts
from ringtrain.report.comparison.logs import Point, RunLog
from ringtrain.report.plots import replace_picture, running_mean, thin_out
from ringtrain.report.screen.words import metric_name

# Source: Okabe & Ito, Color universal design, 2008, without its yellow; purple and brown.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a51a3", "#8c564b", "#000000")
DASHES = ("-", "--", ":")
AGAINST = (
    ("seconds", texts.TIME_AXIS, lambda point: point.seconds),
    ("examples", texts.EXAMPLES_AXIS, lambda point: point.examples),
    ("bytes", texts.BYTES_AXIS, lambda point: None if point.nbytes is None else point.nbytes / 1e6),
)
LOSS = ("loss", texts.LOSS_AXIS, lambda point: point.loss)
ACCURACY = ("accuracy", texts.ACCURACY_AXIS, lambda point: None if point.accuracy is None else 100 * point.accuracy)
ALL_RANKS = 16  # more bars do not fit the picture: it shows least, median and most instead


def check_picture(path) -> None:
    """Check, before hours of training, that the picture can be written. Raises UsageError"""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(texts.PICTURE_NEEDS_MATPLOTLIB()) from None
    known = FigureCanvasAgg(Figure()).get_supported_filetypes()
    ending = Path(path).suffix.lstrip(".")
    if ending not in known:
        raise UsageError(texts.UNKNOWN_PICTURE(path=path, ending=ending, hint=nearest(ending, known)))


def draw_comparison(runs: Sequence[RunLog], rows: Sequence[dict], path) -> None:
    """Draw runs as PNG, SVG or PDF, by the path's ending; the file is replaced whole or not at all. ``rows``: of these
    runs, in their order. Needs matplotlib. Raises UsageError if the file cannot be written.
    """
    figure = new_figure(len(runs))
    axes = figure.subplots(2, 4)
    looks = [look_of(number) for number in range(len(runs))]
    second = second_score(runs)
    for i, score in enumerate((LOSS, second)):
        for j, against in enumerate(AGAINST):
            _curves(axes[i, j], runs, looks, against, score)
    set_limits(axes[:, :3], runs, second is ACCURACY)
    _speeds(axes[0, 3], rows, looks)
    _bytes_by_rank(axes[1, 3], rows, looks)
    add_legend(figure, [run.name for run in runs], looks)
    figure.suptitle(title_of_runs(runs), fontsize=12)
    save(figure, path)


def save(figure, path) -> None:
    """Save a picture whole or not at all. Raises UsageError."""
    try:
        replace_picture(figure, os.fspath(path), Path(path).suffix.lstrip("."))
    except OSError as error:
        raise UsageError(texts.UNWRITABLE(path=path, error=error.strerror)) from None


def new_figure(names: int):
    """Return an empty figure of eight panels, with room for a legend of so many names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    legend_lines = -(-names // 3)
    figure = Figure(figsize=(17, 8 + 0.28 * legend_lines), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def second_score(runs: Sequence[RunLog]) -> tuple:
    """Return the score below the loss: accuracy, or the first metric of runs that have none."""
    tests = [point for run in runs for point in run.test]
    metric = next((name for point in tests for name in point.metrics), None)
    if metric is None or any(point.accuracy is not None for point in tests):
        return ACCURACY
    return metric_name(metric), metric_name(metric), lambda point: point.metrics.get(metric)


def look_of(number: int) -> dict:
    """Return the colour and the dashes of a run or variant."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}


def width_of_line(number: int, count: int) -> float:
    """Return a line's width in points: the first line is the widest, so it stays visible beneath the others."""
    return 1.6 + 2.0 * (count - 1 - number) / max(1, count - 1)


def title_of_runs(runs: Sequence[RunLog]) -> str:
    """Return models, data sets and ranks, unless there are many."""
    facts = {(run.start.get("model"), run.start.get("data")) for run in runs}
    ranks = {run.start.get("ranks") for run in runs}
    what = (
        [" and ".join(sorted(texts.MODEL_ON_DATA(model=model, data=data) for model, data in facts))]
        if len(facts) < 3
        else []
    )
    where = [plural(count, "rank") for count in ranks if len(ranks) == 1 and count is not None]
    return ", ".join(what + where)


# ── curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _curves(axes, runs: Sequence[RunLog], looks: Sequence[dict], against: tuple, score: tuple) -> None:
    """Draw training as a thin running mean, tests as points on a line."""
    x_of, y_of = against[2], score[2]
    for number, (run, look) in enumerate(zip(runs, looks, strict=True)):
        x, y = _series(run.train, x_of, y_of)
        if x:
            axes.plot(*thin_out(x, running_mean(y)), linewidth=0.9, alpha=0.55, **look)
        tested = _series(run.test, x_of, y_of)
        if tested[0]:
            size = 2 if len(tested[0]) > 60 else 4
            width = width_of_line(number, len(runs))
            axes.plot(*tested, linewidth=width, marker="o", markersize=size + width / 2, **look)
    finish_panel(axes, against, score)


def finish_panel(axes, against: tuple, score: tuple) -> None:
    """Label a panel of curves; an empty one says why."""
    axes.set(xlabel=against[1], ylabel=score[1])
    axes.grid(color="#dddddd", linewidth=0.6)
    make_plain(axes)
    if not axes.get_lines():
        say(axes, texts.NOT_RECORDED(what="bytes" if against[0] == "bytes" else score[0]))


def _series(points: Sequence[Point], x_of, y_of) -> tuple[list, list]:
    pairs = [(x_of(point), y_of(point)) for point in points]
    pairs = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def set_limits(axes, runs: Sequence[RunLog], accuracy: bool) -> None:
    """Set the same limits for all axes of a row: the range of the tests, and as much again. The start of training, and
    a diverging run, must not compress the rest.
    """
    loss = _end_of_view([point.loss for run in runs for point in run.test if point.loss is not None], 2.5)
    missed = _end_of_view([1 - point.accuracy for run in runs for point in run.test if point.accuracy is not None], 2.0)
    for each in axes[0]:
        each.set_ylim(0.0, loss if loss else _usual_top(runs))
    for each in axes[1] if accuracy else ():
        each.set_ylim(max(0.0, 100 * (1 - missed)) if missed else 0.0, 101.0)
    for each in axes.flat:
        if each.get_lines():
            each.set_xlim(left=0.0)


def _end_of_view(values: Sequence[float], times: float) -> float | None:
    """Return ``times`` the value that three quarters of the values do not exceed; None without values."""
    return times * sorted(values)[3 * (len(values) - 1) // 4] if values else None


def _usual_top(runs: Sequence[RunLog]) -> float:
    begun = sorted(run.train[0].loss for run in runs if run.train and run.train[0].loss is not None)
    return 1.2 * begun[len(begun) // 2] if begun else 1.0


# ── bars ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _speeds(axes, rows: Sequence[dict], looks: Sequence[dict]) -> None:
    for place, (row, look) in enumerate(zip(rows, looks, strict=True)):
        if row["images_per_s"] is not None:
            axes.barh(place, row["images_per_s"], color=look["color"], height=0.7)
            axes.text(row["images_per_s"], place, f" {row['images_per_s']:,.0f} ", va="center", ha="left", fontsize=9)
    axes.set(xlabel=texts.SPEED_AXIS, yticks=[], ylim=(len(rows) - 0.4, -0.6))
    axes.margins(x=0.25)
    make_plain(axes)
    if not axes.patches:
        say(axes, texts.NOT_RECORDED(what="its speed"))


def _bytes_by_rank(axes, rows: Sequence[dict], looks: Sequence[dict]) -> None:
    """Draw groups of bars: a group a rank, a bar a run."""
    counted = [(row["bytes_sent"], look) for row, look in zip(rows, looks, strict=True) if _counted(row)]
    labels, bars = _bars([sent for sent, _ in counted])
    width = 0.8 / max(1, len(counted))
    for place, (heights, (_, look)) in enumerate(zip(bars, counted, strict=True)):
        left = [k - 0.4 + width * (place + 0.5) for k in range(len(heights))]
        axes.bar(left, [height / 1e6 for height in heights], width=0.9 * width, color=look["color"])
    axes.set(ylabel=texts.SENT_AXIS, xticks=range(len(labels)), xticklabels=labels, xlabel=texts.RANK_AXIS)
    make_plain(axes)
    if not counted:
        axes.set(xticks=[], yticks=[])
        say(axes, texts.NOT_RECORDED(what="bytes"))


def _counted(row: dict) -> bool:
    return row["bytes_sent"] is not None and None not in row["bytes_sent"]


def _bars(sent: Sequence[list[int]]) -> tuple[list[str], list[list[int]]]:
    """Return (names of the groups, heights of each run's bars)."""
    ranks = max(map(len, sent), default=0)
    if ranks <= ALL_RANKS:
        return [str(rank) for rank in range(ranks)], [list(own) for own in sent]
    return ["least", "median", "most"], [[min(own), sorted(own)[len(own) // 2], max(own)] for own in sent]


# ── shared parts ─────────────────────────────────────────────────────────────────────────────────────────────────────
def make_plain(axes) -> None:
    """Draw axes below curves, and no frame."""
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def say(axes, text: str) -> None:
    """Write a text in the middle of an empty panel."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#777777")


def add_legend(figure, names: Sequence[str], looks: Sequence[dict], more: Sequence = ()) -> None:
    """Explain looks by names, and the kinds of curves. ``more``: further handles"""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linewidth=2.5, label=name, **look) for name, look in zip(names, looks, strict=True)]
    handles.append(Line2D([], [], color="#555555", linewidth=1.8, marker="o", markersize=4, label=texts.TEST_CURVE))
    handles.append(Line2D([], [], color="#555555", linewidth=0.9, alpha=0.55, label=texts.TRAIN_CURVE))
    handles += more
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
