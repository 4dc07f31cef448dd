"""Plots of a sweep: bus bandwidth against size, and speedup over the MPI."""

from typing import TYPE_CHECKING

from ringtrain.allreduce.catalogue import NATIVE
from ringtrain.bench.header import before_a_call
from ringtrain.bench.measure.rows import REFUSED, asked_name, label
from ringtrain.bench.model.bounds import MAPPED_BY_DEVICES
from ringtrain.humanize import format_bytes, format_rate, plural
from ringtrain.report import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = figure.COLOURS[:-1]  # without black, which is the MPI's
DASHES = ("-", "--", ":")
MOST_TICKS = 7
LEGEND_LINE = 0.25  # inches
DOUBTFUL = "hollow: unreliable, by\nnoise or shared cores"


def plot_sweep(header: dict, rows: list[dict], path) -> None:
    """Plot the first (type, operation, placement) of the rows.

    Raises: as :func:`ringtrain.report.figure.write_picture`.
    """
    figure.write_picture(lambda: _drawn(header, rows), path)


def _drawn(header: dict, rows: list[dict]) -> "Figure":
    rows = [row for row in rows if row["status"] != REFUSED]
    kind = _kind(rows[0]) if rows else None
    curves = _curves([row for row in rows if _kind(row) == kind])
    beside = {name: own for name, own in curves.items() if all(row["speedup"] for row in own)}
    made = figure.new_figure(12 if beside else 8, 5)
    bandwidth, *faster = made.subplots(1, 2 if beside else 1, squeeze=False)[0]
    _draw_bandwidth(bandwidth, curves)
    for axes in faster:
        _draw_speedup(axes, beside, list(curves), _band(header))
    for axes in (bandwidth, *faster):
        _label_sizes(axes, sorted({row["bytes"] for own in curves.values() for row in own}))
    if curves:
        handles, names = bandwidth.get_legend_handles_labels()
        made.set_figheight(max(5, LEGEND_LINE * len(names)))
        made.legend(handles, names, loc="outside right upper")
    made.suptitle(title_of(header, kind), fontsize="medium", x=0.01, ha="left")
    return made


def _kind(row: dict) -> tuple:
    return row["dtype"], row["op"], row["placement"]


def _curves(rows: list[dict]) -> dict[str, list[dict]]:
    """Return rows by algorithm and by size: the fastest at the largest size first, in the order of the lines' ends."""
    curves: dict[str, list[dict]] = {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        curves.setdefault(label({**row, "algorithm": asked_name(row)}), []).append(row)
    return dict(sorted(curves.items(), key=lambda item: -item[1][-1]["busbw_bytes_per_s"]))


def _look(name: str, names: list[str]) -> dict:
    """Return the style of a line: the MPI's own is black and thick; the others have a colour of their own, and beyond
    eight another dash.
    """
    if name == NATIVE:
        return {"color": "black", "linewidth": 2.8, "marker": "s", "markersize": 5, "zorder": 3}
    number = sorted(set(names) - {NATIVE}).index(name)
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": dash,
        "linewidth": 1.6,
        "marker": "o",
        "markersize": 4,
    }


def _draw_bandwidth(axes, curves: dict[str, list[dict]]) -> None:
    """Draw medians, and bands from the 5th to the 95th percentile of the times."""
    for name, rows in curves.items():
        look, sizes = _look(name, list(curves)), [row["bytes"] for row in rows]
        low, middle, high = ([_gigabytes(row, time) for row in rows] for time in ("p95_s", "median_s", "p5_s"))
        axes.plot(sizes, middle, label=name, **look)
        axes.fill_between(sizes, low, high, color=look["color"], alpha=0.12, linewidth=0)
        _mark_doubts(axes, look, rows, middle)
    if any(row["unreliable"] for rows in curves.values() for row in rows):
        axes.plot([], [], "o", color="grey", markerfacecolor="white", label=DOUBTFUL)
    medians = [_gigabytes(row, "median_s") for rows in curves.values() for row in rows]
    whole = [row for rows in curves.values() for row in rows if row["wire_dtype"] == row["dtype"]]
    of_messages = [row for row in whole if row["bound_s"] and row["transport"] not in MAPPED_BY_DEVICES]
    bound = {row["bytes"]: _gigabytes(row, "bound_s") for row in of_messages}
    if bound:
        sizes = sorted(bound)
        label = f"bound over messages,\nup to {max(bound.values()):.3g} GB/s"
        axes.plot(sizes, [bound[size] for size in sizes], ":", color="grey", label=label)
    top, most = max(medians, default=1), max(bound.values(), default=0)
    axes.set_ylim(0, 1.1 * most if top < most < 2 * top else 1.3 * top)  # no long band, no far bound flattens curves
    axes.set_title("bus bandwidth (GB/s), median, p5 to p95")


def _gigabytes(row: dict, time: str) -> float:
    """Return the bus bandwidth of the row for that time."""
    return row["busbw_bytes_per_s"] * row["median_s"] / row[time] / 1e9


def _mark_doubts(axes, look: dict, rows: list[dict], heights: list[float]) -> None:
    """Draw hollow markers for unreliable rows."""
    doubtful = [(row["bytes"], y) for row, y in zip(rows, heights, strict=True) if row["unreliable"]]
    hollow = {**look, "linestyle": "none", "markerfacecolor": "white", "zorder": 4}
    if doubtful:
        axes.plot(*zip(*doubtful, strict=True), **hollow)


def _band(header: dict) -> str:
    """Return the meaning of the bands of ratios: of one launch, or of several."""
    launches = header.get("launches")
    return f"least to greatest of {plural(len(launches), 'launch', 'launches')}" if launches else "95 % interval"


def _draw_speedup(axes, curves: dict[str, list[dict]], names: list[str], band: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for name, rows in curves.items():
        look, sizes = _look(name, names), [row["bytes"] for row in rows]
        axes.plot(sizes, [row["speedup"] for row in rows], **look)
        _mark_doubts(axes, look, rows, [row["speedup"] for row in rows])
        low, high = ([row[key] for row in rows] for key in ("speedup_low", "speedup_high"))
        axes.fill_between(sizes, low, high, color=look["color"], alpha=0.12, linewidth=0)
    found = [row["speedup"] for rows in curves.values() for row in rows]
    axes.axhline(1, color="black", linewidth=2.8)
    axes.set_yscale("log", base=2)
    axes.set_ylim(min(0.5, *found) / 1.2, max(2, *found) * 1.2)
    axes.yaxis.set_major_locator(LogLocator(2))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g} x" if value >= 1 else f"1/{1 / value:g} x")
    )
    axes.set_title(f"times as fast as {NATIVE}, {band}")


def _label_sizes(axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    shown = sizes[:: len(sizes) // MOST_TICKS + 1]
    axes.set_xticks(shown, [format_bytes(size) for size in shown], fontsize="small")
    axes.set_xticks([], minor=True)
    axes.set_xlabel("buffer of each rank")


def title_of(header: dict, kind: tuple | None) -> str:
    """Return the place, time and settings of the measurement, and whether ranks shared cores."""
    what = f"{kind[0]} {kind[1]}, {kind[2]} place, " if kind else "nothing was measured, "
    ranks, nodes = plural(header["ranks"], "rank"), plural(header["nodes"], "node")
    crowd = f", {header['crowded']}" if header["crowded"] else ""
    links = header["calibration"]["links"].values()
    busy = "".join(f", links busy {format_rate(link['busy_bytes_per_s'])}" for link in links)
    device = f"buffers on {header['device']['name']}, " if header["device"] else ""
    hosts = plural(len(header["hosts"]), "host") if len(header["hosts"]) > 1 else next(iter(header["hosts"]))
    place = f"{hosts}, {header['cpu']}, {header['at'][:10]}, before each call {before_a_call(header['protocol'])}"
    return f"{what}{device}{ranks} on {nodes}{crowd}\n{header['library']}{busy}\n{place}"
