"""Scaling as a picture: speed-up beside the ideal line, efficiency below."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ringtrain.humanize import plural
from ringtrain.report import texts
from ringtrain.report.figure import COLOURS, entitle, new_figure, print_small, small_print, write_picture
from ringtrain.report.scaling.table import interval_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = 6.4, 6.8  # inches: a column of a page
LOOKS = {"strong": {"color": COLOURS[0], "marker": "o"}, "weak": {"color": COLOURS[1], "marker": "s"}}
MEASURED = {"strong": "strong: the same global batch", "weak": "weak: the same batch a rank"}
PREDICTED = {"strong": "strong, predicted", "weak": "weak, predicted"}
ASIDE = 0.05  # of an octave


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """One line of the picture.

    scaling:  "strong" or "weak"
    points:   (ranks, speed-up, low, high) by ranks; low and high are None where nothing is known of the spread
    measured: drawn as points with intervals; otherwise predicted, a dashed line of the same colour
    """

    scaling: str
    points: Sequence[tuple[int, float, float | None, float | None]]
    measured: bool = True

    @property
    def name(self) -> str:
        return (MEASURED if self.measured else PREDICTED)[self.scaling]


def curves_of(rows: Sequence[dict]) -> list[ScalingCurve]:
    """Return a curve for each kind of scaling in rows of :func:`ringtrain.report.scaling.figures.scaling_rows`, and of
    its predictions if the rows have them."""
    found: dict[tuple[str, bool], list[tuple]] = {}
    for row in rows:
        if row["speedup"] is not None:
            point = (row["ranks"], row["speedup"], row["speedup_low"], row["speedup_high"])
            found.setdefault((row["scaling"], True), []).append(point)
        if row.get("predicted_speedup") is not None:
            found.setdefault((row["scaling"], False), []).append((row["ranks"], row["predicted_speedup"], None, None))
    return [ScalingCurve(scaling, points, measured) for (scaling, measured), points in found.items()]


def draw_measured(rows: Sequence[dict], runs: Sequence[dict], path) -> None:
    """Draw rows of :func:`ringtrain.report.scaling.figures.scaling_rows`. ``runs``: facts of the ``start`` records of
    their runs. The rest as :func:`draw_scaling`.
    """
    title = texts.MODEL_ON_DATA(model=runs[0]["model"], data=runs[0]["data"])
    draw_scaling(curves_of(rows), title, f"{interval_note(rows)} · {small_print(runs)}", path)


def draw_scaling(curves: Sequence[ScalingCurve], title: str, small: str, path) -> None:
    """Draw as PNG, SVG or PDF, by the path's ending; the file is replaced whole or not at all. Needs matplotlib. All
    curves begin at the same number of ranks, with a speed-up of 1. ``small``: where the figures come from. Raises:
    UsageError, RingtrainError as ``files.write``.
    """
    write_picture(partial(_figure, curves, title, small), path)


def _figure(curves: Sequence[ScalingCurve], title: str, small: str) -> "Figure":
    figure = new_figure(*SIZE)
    speedup, efficiency = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    counts = sorted({ranks for curve in curves for ranks, *_ in curve.points})
    ideal = [ranks / counts[0] for ranks in counts]
    speedup.plot(counts, ideal, color="black", linewidth=1, linestyle=":", label="ideal")
    efficiency.axhline(100, color="black", linewidth=1, linestyle=":")
    measured = [curve.scaling for curve in curves if curve.measured]
    for curve in curves:
        aside = 2 ** (ASIDE * (measured.index(curve.scaling) - (len(measured) - 1) / 2)) if curve.measured else 1.0
        _draw(speedup, curve, aside, [1.0] * len(curve.points))
        _draw(efficiency, curve, aside, [100 * counts[0] / ranks for ranks, *_ in curve.points])
    _finish(speedup, efficiency, counts)
    entitle(figure, title)
    print_small(figure, small)
    return figure


def _draw(axes: "Axes", curve: ScalingCurve, aside: float, scales: Sequence[float]) -> None:
    """Draw a curve; ``scales`` times its speed-ups. ``aside``: so that intervals do not hide one another"""
    look: dict = LOOKS[curve.scaling]
    x = [aside * ranks for ranks, *_ in curve.points]
    y = [scale * point[1] for scale, point in zip(scales, curve.points, strict=True)]
    if not curve.measured:
        axes.plot(x, y, color=look["color"], linewidth=1.3, linestyle="--", label=curve.name)
        return
    low, high = (
        [scale * _distance(point[1], point[end]) for scale, point in zip(scales, curve.points, strict=True)]
        for end in (2, 3)
    )
    axes.errorbar(x, y, yerr=(low, high), capsize=4, linewidth=1.5, markersize=6, label=curve.name, **look)


def _distance(value: float, end: float | None) -> float:
    return 0.0 if end is None else abs(value - end)


def _finish(speedup: "Axes", efficiency: "Axes", counts: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axes in (speedup, efficiency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.xaxis.set_minor_locator(NullLocator())
    speedup.set_yscale("log", base=2)
    speedup.yaxis.set_major_locator(LogLocator(2))
    speedup.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    speedup.yaxis.set_minor_locator(NullLocator())
    speedup.set_ylabel(f"speed-up over {plural(counts[0], 'rank')}")
    speedup.legend()
    efficiency.set(xlabel="ranks", ylabel="efficiency, %")
    efficiency.set_ylim(bottom=0)
