"""A comparison as a picture: loss and accuracy, or another metric, against time, examples and bytes; images a second;
bytes by rank.
"""

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ringtrain.humanize import plural
from ringtrain.report import texts
from ringtrain.report.comparison.logs import RunLog
from ringtrain.report.comparison.scores import LOSS, DrawnScore, Of, second_score, series
from ringtrain.report.figure import (
    COLOURS,
    GREY,
    accuracy_view,
    broken,
    entitle,
    loss_view,
    new_figure,
    print_small,
    running_mean,
    say,
    small_print,
    thin_out,
    write_picture,
)
from ringtrain.storage.files import Folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The first line is whole and the widest: another one on it, as of an exact strategy, lets it show through its gaps.
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
AGAINST: tuple[tuple[str, str, Of], ...] = (
    ("seconds", texts.TIME_AXIS(), lambda point: point.seconds),
    ("examples", "examples", lambda point: point.examples),
    ("bytes", texts.BYTES_AXIS(), lambda point: None if point.nbytes is None else point.nbytes / 1e6),
)
Curve = tuple[list[float], list[float]]  # x and y
ALL_RANKS = 16  # more bars do not fit the picture: it shows least, median and most instead
NAME_WIDTH = 20  # characters of a line
LEGEND_COLUMNS = 4


def draw_comparison(runs: Sequence[RunLog], rows: Sequence[dict], path, folder: Folder | None = None) -> None:
    """Draw runs as PNG, SVG or PDF, by the path's ending; the file is replaced whole or not at all. ``rows``: of these
    runs, in their order; ``folder``: as of :func:`write_picture`. Needs matplotlib. Raises: UsageError, RingtrainError
    as ``files.write``.
    """
    write_picture(partial(comparison_figure, runs, rows), path, folder)


def comparison_figure(runs: Sequence[RunLog], rows: Sequence[dict], tall: bool = False) -> "Figure":
    """Return the figure of :func:`draw_comparison`: two rows of four panels, or with ``tall`` four rows of two."""
    figure, axes, below = lay_out(len(runs), len(runs) + len(kinds_of_curves()), tall)
    looks = [look_of(number) for number in range(len(runs))]
    scores = (LOSS, second_score(runs))
    for i, score in enumerate(scores):
        for j, against in enumerate(AGAINST):
            _curves(axes[i, j], runs, looks, against, score)
    set_limits(axes[:, :3], runs, scores[1])
    _speeds(axes[0, 3], rows, looks)
    _bytes_by_rank(axes[1, 3], rows, looks)
    add_legend(below, [run.name for run in runs], looks, kinds_of_curves())
    put_words(figure, runs)
    return figure


# ── parts that a comparison over seeds shares ─────────────────────────────────────────────────────────────────────────
def lay_out(names: int, entries: int, tall: bool = False) -> "tuple[Figure, Any, Axes]":
    """Return (figure, its axes [row, column] of 2 × 4, the axes of the legend below). names: of runs or variants;
    entries: of the legend; tall: the columns go down the page
    """
    panel = max(3.2 if tall else 4.0, 1.5 + 0.42 * names)
    count, below = 4 if tall else 2, 0.25 * -(-entries // LEGEND_COLUMNS)
    figure = new_figure(11.5 if tall else 17, count * panel + below)
    grid = figure.add_gridspec(2, 1, height_ratios=(count * panel, below))
    panels: Any = grid[0].subgridspec(*((4, 2) if tall else (2, 4))).subplots()
    return figure, panels.T if tall else panels, figure.add_subplot(grid[1])


def look_of(number: int) -> dict:
    """Return the colour and the dashes of a run or variant."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def width_of_line(number: int, count: int) -> float:
    """Return a line's width in points: the first line is the widest, so it stays visible beneath the others."""
    return 1.6 + 2.4 * (count - 1 - number) / max(1, count - 1)


def put_words(figure: "Figure", runs: Sequence[RunLog]) -> None:
    """Write models, data sets and ranks above, unless there are many, and where the figures come from below."""
    facts = {(run.start.get("model"), run.start.get("data")) for run in runs}
    ranks = {run.start.get("ranks") for run in runs}
    what = " and ".join(sorted(texts.MODEL_ON_DATA(model=model, data=data) for model, data in facts))
    where = [plural(count, "rank") for count in ranks if len(ranks) == 1 and count is not None]
    entitle(figure, ", ".join([what, *where] if len(facts) < 3 else where))
    print_small(figure, small_print([run.start for run in runs]))


# ── curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _curves(
    axes: "Axes", runs: Sequence[RunLog], looks: Sequence[dict], against: tuple[str, str, Of], score: DrawnScore
) -> None:
    for number, (run, look) in enumerate(zip(runs, looks, strict=True)):
        trained, tested = (series(points, against[2], score.of) for points in (run.train, run.test))
        draw_curve(axes, trained, tested, against, look, width_of_line(number, len(runs)))
    finish_panel(axes, against, score)


def draw_curve(
    axes: "Axes", trained: Curve, tested: Curve, against: tuple[str, str, Of], look: dict, width: float
) -> None:
    """Draw training as a thin running mean, tests as points on a line of a width in points."""
    x, y = trained
    if x:
        thin = thin_out(x, running_mean(y))
        drawn = broken(*thin) if against[0] == "seconds" else thin
        axes.plot(*drawn, linewidth=0.9, alpha=0.55, color=look["color"])
    if tested[0]:
        size = 2 if len(tested[0]) > 60 else 4
        axes.plot(*tested, linewidth=width, marker="o", markersize=size + width / 2, **look)


def finish_panel(axes: "Axes", against: tuple[str, str, Of], score: DrawnScore) -> None:
    """Label a panel of curves; an empty one says why."""
    axes.set(xlabel=against[1], ylabel=score.label)
    axes.locator_params(axis="x", nbins=6)
    if against[0] == "examples":
        axes.xaxis.set_major_formatter("{x:,.0f}")
    if not axes.lines:
        say(axes, texts.NOT_RECORDED(what="bytes" if against[0] == "bytes" else score.name))


def set_limits(axes, runs: Sequence[RunLog], second: DrawnScore) -> None:
    """Set the same limits for all axes of a row."""
    losses = [point.loss for run in runs for point in run.test if point.loss is not None]
    begun = sorted(run.train[0].loss for run in runs if run.train and run.train[0].loss is not None)
    accuracies = [point.accuracy for run in runs for point in run.test if point.accuracy is not None]
    for each in axes[0]:
        each.set_ylim(*loss_view(losses, [] if losses else begun[len(begun) // 2 :]))
    for each in axes[1] if second.is_accuracy else ():
        each.set_ylim(*accuracy_view(accuracies))
    for each in axes.flat:
        if each.get_lines():
            each.set_xlim(left=0.0)


# ── bars ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _speeds(axes: "Axes", rows: Sequence[dict], looks: Sequence[dict]) -> None:
    for place, (row, look) in enumerate(zip(rows, looks, strict=True)):
        if row["images_per_s"] is not None:
            axes.barh(place, row["images_per_s"], color=look["color"], height=0.7)
            end: dict = {"xy": (row["images_per_s"], place), "xytext": (4, 0), "textcoords": "offset points"}
            axes.annotate(f"{row['images_per_s']:,.0f}", va="center", fontsize=9, **end)
    _name_bars(axes, rows, "images a second")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    if not axes.patches:
        say(axes, texts.NOT_RECORDED(what="its speed"))


def _bytes_by_rank(axes: "Axes", rows: Sequence[dict], looks: Sequence[dict]) -> None:
    """Draw a group of bars a run, a bar a rank: rank 0 above."""
    sent = [[] if None in (row["bytes_sent"] or []) else row["bytes_sent"] or [] for row in rows]
    few_ranks = max(map(len, sent), default=0) <= ALL_RANKS
    for place, (own, look) in enumerate(zip(sent, looks, strict=True)):
        shown = own if few_ranks or not own else [min(own), sorted(own)[len(own) // 2], max(own)]
        height = 0.7 / max(1, len(shown))
        for k, nbytes in enumerate(shown):
            axes.barh(place - 0.35 + (k + 0.5) * height, nbytes / 1e6, color=look["color"], height=0.85 * height)
    _name_bars(axes, rows, "sent, MB: a bar a rank" if few_ranks else "sent, MB: least, median and most of all ranks")
    if not any(sent):
        say(axes, texts.NOT_RECORDED(what="bytes"))


def _name_bars(axes: "Axes", rows: Sequence[dict], label: str) -> None:
    """Write each run's name beside its bars, and leave room at their ends."""
    names = ["\n".join(textwrap.wrap(row["name"], NAME_WIDTH)[:3]) for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    axes.set(xlabel=label, ylim=(len(rows) - 0.4, -0.6))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.2)


# ── legend ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def kinds_of_curves() -> list:
    """Return entries of a legend."""
    from matplotlib.lines import Line2D

    grey: dict = {"color": GREY}
    return [
        Line2D([], [], linewidth=1.8, marker="o", markersize=4, label=texts.TEST_CURVE(), **grey),
        Line2D([], [], linewidth=0.9, alpha=0.55, label=texts.TRAIN_CURVE(), **grey),
    ]


def add_legend(axes: "Axes", names: Sequence[str], looks: Sequence[dict], more: Sequence) -> None:
    """Explain looks by names. ``more``: further entries"""
    from matplotlib.lines import Line2D

    named = [Line2D([], [], linewidth=2.5, label=name, **look) for name, look in zip(names, looks, strict=True)]
    axes.set_axis_off()
    axes.legend(handles=[*named, *more], loc="center", ncols=LEGEND_COLUMNS, handlelength=3.5)
