"""Plots of a sweep: bus bandwidth against size, and speedup over the MPI."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ringtrain.allreduce.catalogue import NATIVE
from ringtrain.bench.header import before_a_call
from ringtrain.bench.measure.rows import REFUSED, asked_name, group, label
from ringtrain.humanize import format_bytes, format_rate, plural
from ringtrain.show import figures
from ringtrain.show.figures import doubling_x, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = figures.COLOURS[:-1]  # without black, which is the MPI's
DASHES = ("-", "--", ":")
MOST_TICKS = 7
LEGEND_LINE = 0.25  # inches
DOUBTFUL = "hollow: unreliable, by\nnoise or shared cores"


def sweep_figure(header: dict, rows: list[dict]) -> "Figure":
    """Return a figure of the first (type, operation, placement) of the rows."""
    rows = [row for row in rows if row["status"] != REFUSED]
    kind = group(rows[0]) if rows else None
    curves = _curves([row for row in rows if group(row) == kind])
    looks = _looks(curves)
    beside = {name: curve for name, curve in curves.items() if all(row["speedup"] for row in curve)}
    figure = new_figure(12 if beside else 8, 5)
    bandwidth, *faster = figure.subplots(1, 2 if beside else 1, squeeze=False)[0]
    _draw_bandwidth(bandwidth, curves, looks)
    for axes in faster:
        launches = plural(len(header.get("launches", ())), "launch", "launches")
        band = f"least to greatest of {launches}" if header.get("launches") else "95 % interval"
        _draw_speedup(axes, beside, looks, band)
    sizes = sorted({row["bytes"] for curve in curves.values() for row in curve})
    ticks = {size: format_bytes(size) for size in sizes[:: len(sizes) // MOST_TICKS + 1]}
    for axes in (bandwidth, *faster):
        doubling_x(axes, ticks, "buffer of each rank", fontsize="small")
    if curves:
        handles, names = bandwidth.get_legend_handles_labels()
        figure.set_figheight(max(5, LEGEND_LINE * len(names)))
        figure.legend(handles, names, loc="outside right upper")
    figure.suptitle(title_of(header, kind), fontsize="medium", x=0.01, ha="left")
    return figure


def _curves(rows: list[dict]) -> dict[str, list[dict]]:
    """Return rows by algorithm and by size: the fastest at the largest size first, in the order of the lines' ends."""
    curves: dict[str, list[dict]] = {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        curves.setdefault(label({**row, "algorithm": asked_name(row)}), []).append(row)
    return dict(sorted(curves.items(), key=lambda item: -item[1][-1]["busbw_bytes_per_s"]))


def _looks(names: Iterable[str]) -> dict[str, dict]:
    """Return the style of each line: the MPI's own is black and thick; the others have a colour of their own, and
    beyond eight another dash.
    """
    looks: dict[str, dict] = {
        name: {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
        | {"linewidth": 1.6, "marker": "o", "markersize": 4}
        for number, name in enumerate(sorted(set(names) - {NATIVE}))
    }
    return looks | {NATIVE: {"color": "black", "linewidth": 2.8, "marker": "s", "markersize": 5, "zorder": 3}}


def _draw(axes, curves: dict[str, list[dict]], looks: dict[str, dict], values: Callable[[dict], Sequence]) -> None:
    """Draw curves with bands, and hollow markers on unreliable rows. ``values``: (low, middle, high) of a row"""
    for name, rows in curves.items():
        look, sizes = looks[name], [row["bytes"] for row in rows]
        low, middle, high = zip(*map(values, rows), strict=True)
        axes.plot(sizes, middle, label=name, **look)
        axes.fill_between(sizes, low, high, color=look["color"], alpha=0.12, linewidth=0)
        doubtful = [(row["bytes"], y) for row, y in zip(rows, middle, strict=True) if row["unreliable"]]
        if doubtful:
            hollow = {**look, "linestyle": "none", "markerfacecolor": "white", "zorder": 4}
            axes.plot(*zip(*doubtful, strict=True), **hollow)


def _draw_bandwidth(axes, curves: dict[str, list[dict]], looks: dict[str, dict]) -> None:
    """Draw medians, and bands from the 5th to the 95th percentile of the times."""
    _draw(axes, curves, looks, lambda row: [_gigabytes(row, time) for time in ("p95_s", "median_s", "p5_s")])
    rows = [row for curve in curves.values() for row in curve]
    if any(row["unreliable"] for row in rows):
        axes.plot([], [], "o", color="grey", markerfacecolor="white", label=DOUBTFUL)
    whole = [row for row in rows if row["wire_dtype"] == row["dtype"]]
    bound = {row["bytes"]: _gigabytes(row, "bound_s") for row in whole if row["bound_s"]}
    if bound:
        sizes = sorted(bound)
        label = f"bound over messages,\nup to {max(bound.values()):.3g} GB/s"
        axes.plot(sizes, [bound[size] for size in sizes], ":", color="grey", label=label)
    top = max((_gigabytes(row, "median_s") for row in rows), default=1)
    most = max(bound.values(), default=0)
    axes.set_ylim(0, 1.1 * most if top < most < 2 * top else 1.3 * top)  # no long band, no far bound flattens curves
    axes.set_title("bus bandwidth (GB/s), median, p5 to p95")


def _gigabytes(row: dict, time: str) -> float:
    """Return the bus bandwidth of the row for that time."""
    return row["busbw_bytes_per_s"] * row["median_s"] / row[time] / 1e9


def _draw_speedup(axes, curves: dict[str, list[dict]], looks: dict[str, dict], band: str) -> None:
    _draw(axes, curves, looks, lambda row: [row["speedup_low"], row["speedup"], row["speedup_high"]])
    ratios = [row["speedup"] for rows in curves.values() for row in rows]
    axes.axhline(1, color="black", linewidth=2.8)
    axes.set_yscale("log", base=2)
    axes.set_ylim(min(0.5, *ratios) / 1.2, max(2, *ratios) * 1.2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} x" if value >= 1 else f"1/{1 / value:g} x")
    axes.set_title(f"times as fast as {NATIVE}, {band}")


def title_of(header: dict, kind: str | None) -> str:
    """Return the place, time and settings of the measurement, and whether ranks shared cores."""
    what = f"{kind}, " if kind else "nothing was measured, "
    ranks, nodes = plural(header["ranks"], "rank"), plural(header["nodes"], "node")
    crowd = f", {header['crowded']}" if header["crowded"] else ""
    links = header["calibration"]["links"].values()
    busy = "".join(f", links busy {format_rate(link['busy_bytes_per_s'])}" for link in links)
    device = f"buffers on {header['device']['name']}, " if header["device"] else ""
    hosts = plural(len(header["hosts"]), "host") if len(header["hosts"]) > 1 else next(iter(header["hosts"]))
    conditions = f"{hosts}, {header['cpu']}, {header['at'][:10]}, before each call {before_a_call(header['protocol'])}"
    return f"{what}{device}{ranks} on {nodes}{crowd}\n{header['library']}{busy}\n{conditions}"
