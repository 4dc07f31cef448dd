"""Scaling as a table, as CSV, and as a picture: speed-up beside the ideal line, efficiency below."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ringtrain.humanize import RATE, plural
from ringtrain.report.figure import small_print
from ringtrain.report.scaling.figures import FIELDS
from ringtrain.show import tables
from ringtrain.show.figures import COLOURS, doubling_x, entitle, new_figure
from ringtrain.show.tables import Column, make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table


def _interval(form: str) -> Callable[..., str]:
    """Format a figure and its interval: 3.71 [3.60, 3.75]."""
    return lambda value, low, high: (form if low is None else f"{form} [{form}, {form}]").format(value, low, high)


ENDS = ("_low", "_high")
COLUMNS = (
    Column("scaling", "scaling", left=True),
    Column("ranks", "ranks"),
    Column("nodes", "nodes", none="None"),
    Column("batch", "batch", "", "{:,}"),
    Column("images_per_s", RATE, "", _interval("{:,.0f}"), spread=ENDS),
    Column("step_s", "step", "ms", "{:.3g}", scale=1e3),
    Column("speedup", "speed-up", "", _interval("{:.2f}"), spread=ENDS),
    Column("efficiency", "efficiency", "%", "{:.0f}", scale=100),
    Column("exposed_s", "exposed", "ms a step", _interval("{:.3g}"), spread=ENDS, scale=1e3),
)


def scaling_table(rows: Sequence[dict]) -> "Table":
    """Return a line for each kind of scaling and number of ranks."""
    return make_table(COLUMNS, rows)


def interval_note(rows: Sequence[dict]) -> str:
    """Return what the intervals are."""
    confidences = sorted({(row["rounds"], row["confidence"]) for row in rows if row["confidence"] is not None})
    if not confidences:
        return "one round: no intervals"
    words = ", ".join(f"{100 * confidence:.0f} % with {rounds} rounds" for rounds, confidence in confidences)
    return f"medians over interleaved rounds; intervals are of the median: {words}"


def csv_text(rows: Sequence[dict]) -> str:
    """Return a line for each kind of scaling and number of ranks."""
    return tables.csv_text(FIELDS, rows)


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────────
SIZE = 6.4, 6.8  # inches: a column of a page
LOOKS: dict[str, dict] = {
    "strong": {"color": COLOURS[0], "marker": "o", "label": "strong: the same global batch"},
    "weak": {"color": COLOURS[1], "marker": "s", "label": "weak: the same batch a rank"},
}
ASIDE = 0.05  # of an octave, so that intervals do not hide one another


def scaling_figure(rows: Sequence[dict], runs: Sequence[dict]) -> "Figure":
    """Return the figure of rows of :func:`ringtrain.report.scaling.figures.scaling_rows`. ``runs``: facts of the
    ``start`` records of their runs"""
    figure = new_figure(*SIZE)
    speedup, efficiency = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    rows = [row for row in rows if row["speedup"] is not None]
    counts = sorted({row["ranks"] for row in rows})
    line: dict = {"color": "black", "linewidth": 1, "linestyle": ":"}
    speedup.plot(counts, [ranks / counts[0] for ranks in counts], label="ideal", **line)
    efficiency.axhline(100, **line)
    scalings = list(dict.fromkeys(row["scaling"] for row in rows))
    for number, scaling in enumerate(scalings):
        curve, aside = [row for row in rows if row["scaling"] == scaling], ASIDE * (number - (len(scalings) - 1) / 2)
        _draw(speedup, curve, 2**aside, dict.fromkeys(counts, 1.0))
        _draw(efficiency, curve, 2**aside, {ranks: 100 * counts[0] / ranks for ranks in counts})
    speedup.set_yscale("log", base=2)
    speedup.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    speedup.set_ylabel(f"speed-up over {plural(counts[0], 'rank')}")
    speedup.legend()
    for axes in (speedup, efficiency):
        doubling_x(axes, {count: str(count) for count in counts}, "ranks" if axes is efficiency else "")
    efficiency.set_ylabel("efficiency, %")
    efficiency.set_ylim(bottom=0)
    title = f"{runs[0]['model']} on {runs[0]['data']}"
    entitle(figure, title, f"{interval_note(rows)} · {small_print(runs)}")
    return figure


def _draw(axes: "Axes", rows: Sequence[dict], aside: float, scales: Mapping[int, float]) -> None:
    """Draw points with intervals. ``scales``: times the speed-ups, by ranks"""
    look = LOOKS[rows[0]["scaling"]]
    ends = [
        [scales[row["ranks"]] * (0.0 if row[end] is None else abs(row["speedup"] - row[end])) for row in rows]
        for end in ("speedup_low", "speedup_high")
    ]
    x, y = [aside * row["ranks"] for row in rows], [scales[row["ranks"]] * row["speedup"] for row in rows]
    axes.errorbar(x, y, yerr=ends if any(map(any, ends)) else None, capsize=4, linewidth=1.5, markersize=6, **look)
    for at in zip(x, y, strict=True):
        axes.annotate(f"{at[1]:.3g}", at, (6, -9), textcoords="offset points", fontsize=8, color=look["color"])
