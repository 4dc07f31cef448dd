"""A comparison as a picture: loss and accuracy, or another metric, against time, examples and bytes. Beside them of
runs: examples a second, bytes by rank; of variants over seeds: their score against time and bytes.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from ringtrain.humanize import RATE, plural
from ringtrain.report.comparison.logs import Point, RunLog
from ringtrain.report.comparison.over_seeds import ENDED, SCORES
from ringtrain.report.comparison.scores import (
    ACCURACY,
    BYTES_AXIS,
    LOSS,
    TEST_CURVE,
    TIME_AXIS,
    TRAIN_CURVE,
    Coordinate,
    DrawnScore,
    second_score,
    series,
)
from ringtrain.report.figure import accuracy_view, loss_view, small_print
from ringtrain.show.figures import COLOURS, GREY, entitle, new_figure, running_mean, say, thin_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The first line is whole and the widest: another one on it, as of an exact strategy, lets it show through its gaps.
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
AGAINST: tuple[tuple[str, str, Coordinate], ...] = (
    ("seconds", TIME_AXIS, lambda point: point.seconds),
    ("examples", "examples", lambda point: point.examples),
    ("bytes", BYTES_AXIS, lambda point: None if point.nbytes is None else point.nbytes / 1e6),
)
COSTS = (("seconds", 1.0, TIME_AXIS), ("bytes_sent", 1e-6, BYTES_AXIS))
MARKERS = ("o", "s", "^", "D")  # of the first variants, of those with the same colours again …
THIN: dict[str, Any] = {"linewidth": 0.9, "alpha": 0.55}  # training beside tests
OPACITY = 0.18  # of a band
ALL_RANKS = 16  # more bars do not fit the picture: it shows least, median and most instead
NAME_WIDTH = 20  # characters of a line
LEGEND_COLUMNS = 4
Looks = Sequence[dict]  # colour and dashes of each run or variant
Groups = Sequence[tuple[str, Sequence[RunLog]]]  # names, each with its runs


def comparison_figure(runs: Sequence[RunLog], rows: Sequence[dict]) -> "Figure":
    """Return two rows of four panels, or one of five where runs have losses alone. ``rows``: of these runs, in their
    order"""
    groups, beside = [(run.name, [run]) for run in runs], (partial(_speeds, rows), partial(_bytes_by_rank, rows))
    return _figure(runs, groups, series_of_one, beside)


def variants_figure(runs: Sequence[RunLog], variants: Sequence[dict], variant_of: Mapping[str, str]) -> "Figure":
    """Return the figure of variants over seeds: means with bands of one standard deviation.

    runs:       all that have a log; those that came to their end are drawn
    variants:   rows of :func:`ringtrain.report.comparison.over_seeds.variant_rows`
    variant_of: name of a run → name of its variant
    """
    ended = [run for run in runs if run.outcome in ENDED]
    names = [variant["name"] for variant in variants]
    groups = [(name, [run for run in ended if variant_of[run.name] == name]) for name in names]
    return _figure(ended, groups, mean_curve, [partial(_costs, variants, *cost) for cost in COSTS])


def _figure(runs: Sequence[RunLog], groups: Groups, curve: Callable, beside: Sequence[Callable]) -> "Figure":
    """Return the figure. ``curve``: of a group, as :func:`mean_curve`; ``beside``: draw the last panel of a row"""
    looks = [
        {"color": COLOURS[n % len(COLOURS)], "linestyle": DASHES[n % 4], "marker": MARKERS[n // len(COLOURS) % 4]}
        for n in range(len(groups))
    ]
    is_tested = any(run.test for run in runs)
    entries = _legend([name for name, _ in groups], looks, curve is mean_curve, is_tested)
    second = second_score(runs)
    points = [point for run in runs for point in (*run.train, *run.test)]
    scores = [LOSS, second] if any(second.value(point) is not None for point in points) else [LOSS]
    figure, panels, below = _lay_out(len(groups), len(entries), len(scores))
    for row, score in zip(panels, scores, strict=True):
        for axes, against in zip(row, AGAINST, strict=False):
            _curves(axes, groups, looks, against, score, curve)
    for axes, draw in zip(panels[:, 3:].flat, beside, strict=True):
        draw(axes, looks)
    _set_limits(panels[:, :3], runs, second)
    below.set_axis_off()
    below.legend(handles=entries, loc="center", ncols=LEGEND_COLUMNS, handlelength=3.5)
    facts = {(run.start.get("model"), run.start.get("data")) for run in runs}
    ranks = {run.start.get("ranks") for run in runs}
    what = " and ".join(sorted(f"{model} on {data}" for model, data in facts))
    where = [plural(count, "rank") for count in ranks if len(ranks) == 1 and count is not None]
    entitle(figure, ", ".join([what, *where] if len(facts) < 3 else where), small_print([run.start for run in runs]))
    return figure


def _lay_out(names: int, entries: int, scores: int) -> "tuple[Figure, Any, Axes]":
    """Return (figure, its axes [row, column] of 2 × 4, or of 1 × 5 for one score, the axes of the legend below).
    names: of runs or variants; entries: of the legend
    """
    height, below = scores * max(4.0, 1.5 + 0.42 * names), 0.25 * -(-entries // LEGEND_COLUMNS)
    figure = new_figure(17, height + below)
    grid = figure.add_gridspec(2, 1, height_ratios=(height, below))
    panels: Any = grid[0].subgridspec(*((2, 4) if scores == 2 else (1, 5))).subplots(squeeze=False)
    return figure, panels, figure.add_subplot(grid[1])


def _width_of_line(number: int, count: int) -> float:
    """Return a line's width in points: the first line is the widest, so it stays visible beneath the others."""
    return 1.6 + 2.4 * (count - 1 - number) / max(1, count - 1)


# ── curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _curves(
    axes: "Axes", groups: Groups, looks: Looks, against: tuple[str, str, Coordinate], score: DrawnScore, curve: Callable
) -> None:
    """Draw training as a thin running mean, tests as points on a line, with a band if they are means. Without tests the
    curves of training are drawn in their place."""
    name, label, x_of = against
    is_tested = any(run.test for _, runs in groups for run in runs)
    for number, ((_, runs), look) in enumerate(zip(groups, looks, strict=True)):
        x, y, sd = curve([run.train for run in runs], x_of, score.value)
        if x:
            y = running_mean(y)
            style = {**THIN, "color": look["color"]} if is_tested else {"linewidth": 1.8, "markevery": 0.1, **look}
            axes.plot(*thin_out(x, y), **style)
        if is_tested:
            x, y, sd = curve([run.test for run in runs], x_of, score.value)
        if x and is_tested:
            size, width = 2 if len(x) > 60 else 4, _width_of_line(number, len(groups))
            axes.plot(x, y, linewidth=width, markersize=size + width / 2, **look)
        if sd:
            low, high = ([m + sign * s for m, s in zip(y, sd, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=look["color"], alpha=OPACITY, linewidth=0)
    axes.set(xlabel=label, ylabel=score.label)
    axes.locator_params(axis="x", nbins=6)
    if name == "examples":
        axes.xaxis.set_major_formatter("{x:,.0f}")
    if not axes.lines:
        points = (point for _, runs in groups for run in runs for point in (*run.train, *run.test))
        is_scored = any(score.value(point) is not None for point in points)
        say(axes, f"no run has recorded {'bytes' if is_scored else score.name}")


def series_of_one(curves: Sequence[Sequence[Point]], x_of: Coordinate, y_of: Coordinate) -> tuple[list, list, list]:
    """Return (x, y, no standard deviations) of the one curve."""
    return *series(curves[0], x_of, y_of), []


def mean_curve(curves: Sequence[Sequence[Point]], x_of: Coordinate, y_of: Coordinate) -> tuple[list, list, list]:
    """Return means of x, and means and standard deviations of y, at the numbers of examples that all curves have."""
    at: dict[int, list[tuple]] = {}
    for point in (point for curve in curves for point in curve):
        x, y = x_of(point), y_of(point)
        if x is not None and y is not None:
            at.setdefault(point.examples, []).append((x, y))
    whole = [at[examples] for examples in sorted(at) if len(at[examples]) == len(curves)]
    return (
        [mean(x for x, _ in pairs) for pairs in whole],
        [mean(y for _, y in pairs) for pairs in whole],
        [stdev(y for _, y in pairs) if len(pairs) > 1 else 0.0 for pairs in whole],
    )


def _set_limits(axes, runs: Sequence[RunLog], second: DrawnScore) -> None:
    """Set the same limits for all axes of a row."""
    losses = [point.loss for run in runs for point in run.test if point.loss is not None]
    begun = sorted(run.train[0].loss for run in runs if run.train and run.train[0].loss is not None)
    accuracies = [point.accuracy for run in runs for point in run.test if point.accuracy is not None]
    for each in axes[0]:
        each.set_ylim(*loss_view(losses, [] if losses else begun[len(begun) // 2 :]))
    for each in axes[1:].flat if second.is_accuracy else ():
        each.set_ylim(*accuracy_view(accuracies))
    for each in axes.flat:
        if each.get_lines():
            each.set_xlim(left=0.0)


# ── bars of runs ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _speeds(rows: Sequence[dict], axes: "Axes", looks: Looks) -> None:
    for place, (row, look) in enumerate(zip(rows, looks, strict=True)):
        if row["images_per_s"] is not None:
            axes.barh(place, row["images_per_s"], color=look["color"], height=0.7)
            end: dict = {"xy": (row["images_per_s"], place), "xytext": (4, 0), "textcoords": "offset points"}
            axes.annotate(f"{row['images_per_s']:,.0f}", va="center", fontsize=9, **end)
    _name_bars(axes, rows, RATE)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    if not axes.patches:
        say(axes, "no run has recorded its speed")


def _bytes_by_rank(rows: Sequence[dict], axes: "Axes", looks: Looks) -> None:
    """Draw a group of bars a run, a bar a rank: rank 0 above."""
    sent = [[] if None in (row["bytes_sent"] or []) else row["bytes_sent"] or [] for row in rows]
    few_ranks = max(map(len, sent), default=0) <= ALL_RANKS
    for place, (nbytes, look) in enumerate(zip(sent, looks, strict=True)):
        shown = nbytes if few_ranks or not nbytes else [min(nbytes), sorted(nbytes)[len(nbytes) // 2], max(nbytes)]
        height = 0.7 / max(1, len(shown))
        places = [place - 0.35 + (k + 0.5) * height for k in range(len(shown))]
        axes.barh(places, [each / 1e6 for each in shown], color=look["color"], height=0.85 * height)
    _name_bars(axes, rows, "sent, MB: a bar a rank" if few_ranks else "sent, MB: least, median and most of all ranks")
    if not any(sent):
        say(axes, "no run has recorded bytes")


def _name_bars(axes: "Axes", rows: Sequence[dict], label: str) -> None:
    """Write each run's name beside its bars, the first one above, and leave room at their ends."""
    names = ["\n".join(textwrap.wrap(row["name"], NAME_WIDTH)[:3]) for row in rows]
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set(xlabel=label, ylim=(len(names) - 0.4, -0.6))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.2)


# ── costs of variants ─────────────────────────────────────────────────────────────────────────────────────────────────
def _costs(variants: Sequence[dict], cost: str, unit: float, label: str, axes: "Axes", looks: Looks) -> None:
    """Draw the last score against what it costs, with standard deviations. The score: the first that a variant has."""
    score = next((name for name in SCORES if any(row[name] is not None for row in variants)), SCORES[-1])
    drawn, scale = (ACCURACY, 100.0) if score.endswith("accuracy") else (LOSS, 1.0)
    for number, (variant, look) in enumerate(zip(variants, looks, strict=True)):
        if None not in (variant[cost], variant[score]):
            x, y = unit * variant[cost], scale * variant[score]
            deviations = unit * (variant[f"{cost}_sd"] or 0.0), scale * (variant[f"{score}_sd"] or 0.0)
            mark: dict = {**look, "linestyle": "none", "markersize": 5 + 2 * _width_of_line(number, len(variants))}
            axes.errorbar(x, y, xerr=deviations[0], yerr=deviations[1], capsize=3, **mark)
            axes.annotate(variant["name"][:24], (x, y), (6, 5), textcoords="offset points", fontsize=7)
    axes.set(xlabel=label, ylabel=drawn.label)
    axes.locator_params(axis="x", nbins=6)
    axes.margins(0.12)
    if not axes.lines:
        say(axes, "no run has recorded both")


# ── legend ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _legend(names: Sequence[str], looks: Looks, over_seeds: bool, is_tested: bool) -> list:
    """Return the entries of the legend: looks by names, the kinds of curves, and the band of means over seeds."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list = [Line2D([], [], linewidth=2.5, label=name, **look) for name, look in zip(names, looks, strict=True)]
    grey: dict[str, Any] = {"color": GREY}
    if is_tested:
        entries.append(Line2D([], [], linewidth=1.8, marker="o", markersize=4, label=TEST_CURVE, **grey))
    entries.append(Line2D([], [], label=TRAIN_CURVE, **(THIN if is_tested else {}), **grey))
    if over_seeds:
        entries.append(Patch(color=GREY, alpha=OPACITY, label="± one standard deviation over seeds"))
    return entries
