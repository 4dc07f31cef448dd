"""Variants over seeds as a picture: means with bands of one standard deviation, and the Pareto fronts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from ringtrain.report import texts
from ringtrain.report.comparison.logs import Point, RunLog
from ringtrain.report.comparison.over_seeds import ENDED
from ringtrain.report.comparison.plot import (
    AGAINST,
    add_legend,
    draw_curve,
    finish_panel,
    kinds_of_curves,
    lay_out,
    look_of,
    put_words,
    set_limits,
    width_of_line,
)
from ringtrain.report.comparison.scores import LOSS, DrawnScore, Of, second_score
from ringtrain.report.figure import GREY, say, write_picture
from ringtrain.storage.files import Folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRONTS = (
    ("pareto_time", "seconds", 1.0, texts.TIME_AXIS()),
    ("pareto_bytes", "bytes_sent", 1e-6, texts.BYTES_AXIS()),
)
FRONT: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": "--"}
OPACITY = 0.18  # of a band


def draw_variants(
    runs: Sequence[RunLog],
    variants: Sequence[dict],
    variant_of: Mapping[str, str],
    path,
    folder: Folder | None = None,
) -> None:
    """Draw variants over seeds as PNG, SVG or PDF, by the path's ending; the file is replaced whole or not at all.
    Needs matplotlib. ``folder``: as of :func:`write_picture`; the rest as :func:`variants_figure`. Raises: UsageError,
    RingtrainError as ``files.write``.
    """
    write_picture(partial(variants_figure, runs, variants, variant_of), path, folder)


def variants_figure(runs: Sequence[RunLog], variants: Sequence[dict], variant_of: Mapping[str, str]) -> "Figure":
    """Return the figure of variants over seeds.

    runs:       all that have a log; those that came to their end are drawn
    variants:   rows of :func:`ringtrain.report.comparison.over_seeds.variant_rows`
    variant_of: name of a run → name of its variant
    """
    ended = [run for run in runs if run.outcome in ENDED]
    own = [[run for run in ended if variant_of[run.name] == variant["name"]] for variant in variants]
    entries = [*kinds_of_curves(), *_more_entries()]
    figure, axes, below = lay_out(len(variants), len(variants) + len(entries))
    looks = [look_of(number) for number in range(len(variants))]
    scores = (LOSS, second_score(ended))
    for i, score in enumerate(scores):
        for j, against in enumerate(AGAINST):
            _curves(axes[i, j], own, looks, against, score)
    set_limits(axes[:, :3], ended, scores[1])
    for panel, front in zip(axes[:, 3], FRONTS, strict=True):
        _front(panel, variants, looks, *front)
    add_legend(below, [variant["name"] for variant in variants], looks, entries)
    put_words(figure, ended)
    return figure


def _curves(
    axes: "Axes",
    variants: Sequence[Sequence[RunLog]],
    looks: Sequence[dict],
    against: tuple[str, str, Of],
    score: DrawnScore,
) -> None:
    """Draw the means of each variant's runs, with a band around those of tests."""
    for number, (runs, look) in enumerate(zip(variants, looks, strict=True)):
        x, y, sd = mean_curve([run.test for run in runs], against[2], score.of)
        trained = mean_curve([run.train for run in runs], against[2], score.of)[:2]
        draw_curve(axes, trained, (x, y), against, look, width_of_line(number, len(variants)))
        low, high = ([m + sign * s for m, s in zip(y, sd, strict=True)] for sign in (-1, 1))
        if x:
            axes.fill_between(x, low, high, color=look["color"], alpha=OPACITY, linewidth=0)
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


def _front(
    axes: "Axes", variants: Sequence[dict], looks: Sequence[dict], front: str, cost: str, unit: float, label: str
) -> None:
    """Draw the last score against what it costs, with standard deviations; variants on the front are filled."""
    has_accuracy = any(variant["test_accuracy"] is not None for variant in variants)
    score, scale = ("test_accuracy", 100.0) if has_accuracy else ("test_loss", 1.0)
    points = []
    for number, (variant, look) in enumerate(zip(variants, looks, strict=True)):
        if variant[front] is not None:
            size = 5 + 2 * width_of_line(number, len(variants))
            x, y = unit * variant[cost], scale * variant[score]
            bars: dict[str, Any] = {
                "xerr": unit * (variant[f"{cost}_sd"] or 0.0),
                "yerr": scale * (variant[f"{score}_sd"] or 0.0),
            }
            shape: dict[str, Any] = {"marker": "o", "markersize": size, "capsize": 3}
            fill = look["color"] if variant[front] else "white"
            axes.errorbar(x, y, **bars, **shape, color=look["color"], markerfacecolor=fill)
            points += [(x, y)] if variant[front] else []
    points.sort()
    axes.step([x for x, _ in points], [y for _, y in points], where="post", zorder=0, **FRONT)
    axes.set(xlabel=label, ylabel=texts.ACCURACY_AXIS() if has_accuracy else texts.LOSS_AXIS())
    axes.locator_params(axis="x", nbins=6)
    axes.margins(0.12)
    if not points:
        say(axes, texts.NOT_RECORDED(what="both"))


def _more_entries() -> list:
    """Return entries of the legend, of what this picture has beside curves."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dominated: dict[str, Any] = {"color": GREY, "linestyle": "none", "marker": "o", "markerfacecolor": "white"}
    return [
        Patch(color=GREY, alpha=OPACITY, label="± one standard deviation over seeds"),
        Line2D([], [], label="Pareto front: no other is as good for less", **FRONT),
        Line2D([], [], label="not on the front", **dominated),
    ]
