"""Variants over seeds as a picture: means with bands of one standard deviation, and the Pareto fronts."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from ringtrain.report import texts
from ringtrain.report.comparison.logs import Point, RunLog
from ringtrain.report.comparison.over_seeds import ENDED
from ringtrain.report.comparison.plot import (
    ACCURACY,
    AGAINST,
    LOSS,
    add_legend,
    finish_panel,
    look_of,
    make_plain,
    new_figure,
    save,
    say,
    second_score,
    set_limits,
    title_of_runs,
    width_of_line,
)
from ringtrain.report.plots import running_mean, thin_out

FRONTS = (
    ("pareto_time", "seconds", 1.0, texts.TIME_AXIS),
    ("pareto_bytes", "bytes_sent", 1e-6, texts.BYTES_AXIS),
)
FRONT: dict[str, Any] = {"color": "#888888", "linewidth": 1.2, "linestyle": "--"}


def draw_variants(runs: Sequence[RunLog], variants: Sequence[dict], variant_of: Mapping[str, str], path) -> None:
    """Draw variants over seeds, by the path's ending; the file is replaced whole or not at all. Needs matplotlib.

    runs:       all that have a log; those that came to their end are drawn
    variants:   rows of :func:`ringtrain.report.comparison.over_seeds.variant_rows`
    variant_of: name of a run → name of its variant
    Raises UsageError if the file cannot be written.
    """
    ended = [run for run in runs if run.outcome in ENDED]
    own = [[run for run in ended if variant_of[run.name] == variant["name"]] for variant in variants]
    figure = new_figure(len(variants))
    axes = figure.subplots(2, 4)
    looks = [look_of(number) for number in range(len(variants))]
    second = second_score(ended)
    for i, score in enumerate((LOSS, second)):
        for j, against in enumerate(AGAINST):
            _curves(axes[i, j], own, looks, against, score)
    set_limits(axes[:, :3], ended, second is ACCURACY)
    for panel, front in zip(axes[:, 3], FRONTS, strict=True):
        _front(panel, variants, looks, *front)
    add_legend(figure, [variant["name"] for variant in variants], looks, _more_handles())
    figure.suptitle(title_of_runs(ended), fontsize=12)
    save(figure, path)


def _curves(axes, variants: Sequence[Sequence[RunLog]], looks: Sequence[dict], against: tuple, score: tuple) -> None:
    """Draw training as a thin running mean, tests as points on a line in a band."""
    for number, (runs, look) in enumerate(zip(variants, looks, strict=True)):
        x, y, _ = mean_curve([run.train for run in runs], against[2], score[2])
        if x:
            axes.plot(*thin_out(x, running_mean(y)), linewidth=0.9, alpha=0.55, **look)
        x, y, sd = mean_curve([run.test for run in runs], against[2], score[2])
        if x:
            axes.plot(x, y, linewidth=width_of_line(number, len(variants)), marker="o", markersize=3, **look)
            low, high = ([m + sign * s for m, s in zip(y, sd, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    finish_panel(axes, against, score)


def mean_curve(curves: Sequence[Sequence[Point]], x_of: Callable, y_of: Callable) -> tuple[list, list, list]:
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


def _front(axes, variants: Sequence[dict], looks: Sequence[dict], front: str, cost: str, unit: float, label) -> None:
    """Draw the last score against what it costs, with standard deviations; variants on the front are filled."""
    has_accuracy = any(variant["test_accuracy"] is not None for variant in variants)
    score, scale = ("test_accuracy", 100.0) if has_accuracy else ("test_loss", 1.0)
    points = []
    for number, (variant, look) in enumerate(zip(variants, looks, strict=True)):
        if variant[front] is not None:
            size = 5 + 2 * width_of_line(number, len(variants))
            x, y = unit * variant[cost], scale * variant[score]
            bars = {"xerr": unit * (variant[f"{cost}_sd"] or 0.0), "yerr": scale * (variant[f"{score}_sd"] or 0.0)}
            shape: dict[str, Any] = {"marker": "o", "markersize": size, "capsize": 3}
            fill = look["color"] if variant[front] else "white"
            axes.errorbar(x, y, **bars, **shape, color=look["color"], markerfacecolor=fill)
            points += [(x, y)] if variant[front] else []
    points.sort()
    axes.step([x for x, _ in points], [y for _, y in points], where="post", zorder=0, **FRONT)
    axes.set(xlabel=label, ylabel=texts.ACCURACY_AXIS if has_accuracy else texts.LOSS_AXIS)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.margins(0.12)
    make_plain(axes)
    if not points:
        say(axes, texts.NOT_RECORDED(what="both"))


def _more_handles() -> list:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dominated: dict[str, Any] = {"color": "#555555", "linestyle": "none", "marker": "o", "markerfacecolor": "white"}
    return [
        Patch(color="#555555", alpha=0.18, label=texts.BAND),
        Line2D([], [], label=texts.PARETO_FRONT, **FRONT),
        Line2D([], [], label=texts.DOMINATED, **dominated),
    ]
