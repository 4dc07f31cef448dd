"""A sweep as a picture: bus bandwidth against size, and how many times faster than the MPI."""

from pathlib import Path

from ringtrain.bench import words
from ringtrain.bench.files import check_writable
from ringtrain.bench.rows import REFUSED, label
from ringtrain.errors import UsageError, nearest
from ringtrain.exchange.reductions import NATIVE


def check_plot(path) -> None:
    """Before hours of measuring. Raises UsageError where there could be no picture."""
    check_writable(path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'ringtrain[plot]'") from None
    known = FigureCanvasAgg(Figure()).get_supported_filetypes()
    ending = Path(path).suffix.lstrip(".")
    if ending not in known:
        raise UsageError(f"--plot {path}: no picture is of kind {ending!r}; {nearest(ending, known)}")


def draw(header: dict, rows: list[dict], path) -> None:
    """The first (type, operation, placement) of the rows. PNG, SVG or PDF by the path's ending. Needs matplotlib."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["status"] != REFUSED]
    kind = _kind(rows[0]) if rows else None
    rows = [row for row in rows if _kind(row) == kind]
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    bandwidth, faster = figure.subplots(1, 2)
    for colour, name in enumerate(dict.fromkeys(map(label, rows))):
        own = [row for row in rows if label(row) == name]
        _draw_bandwidth(bandwidth, name, own, f"C{colour}")
        if name != NATIVE and all(row["speedup"] for row in own):
            _draw_speedup(faster, name, own, f"C{colour}")
    _draw_bound(bandwidth, rows)
    bandwidth.set(title="bus bandwidth, bars p5 to p95", ylabel="GB/s")
    faster.set(title=f"times as fast as {NATIVE}, 95 % interval", ylabel="ratio of medians")
    faster.axhline(1, color="grey", linewidth=0.8)
    _finish(figure, (bandwidth, faster), title_of(header, kind))
    figure.savefig(path, dpi=150)


def _finish(figure, panels, title: str) -> None:
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.set_xlabel("bytes of the buffer")
        axes.set_ylim(bottom=0)
        axes.grid(color="#dddddd", linewidth=0.6)
        if curves := len(axes.get_legend_handles_labels()[0]):
            axes.legend(frameon=False, fontsize="small", ncols=1 + curves // 12)
    figure.suptitle(title, fontsize="small")


def _kind(row: dict) -> tuple:
    return row["dtype"], row["op"], row["placement"]


def _draw_bandwidth(axes, name: str, rows: list[dict], colour: str) -> None:
    factor = [row["busbw_bytes_per_s"] * row["median_s"] / 1e9 for row in rows]  # GB/s of a time of one second
    middle, low, high = ([f / row[key] for f, row in zip(factor, rows, strict=True)] for key in _TIMES)
    bars = [
        [max(m - a, 0) for m, a in zip(middle, low, strict=True)],
        [max(b - m, 0) for m, b in zip(middle, high, strict=True)],
    ]
    axes.errorbar([row["bytes"] for row in rows], middle, bars, fmt="o-", color=colour, label=name, capsize=2)


_TIMES = ("median_s", "p95_s", "p5_s")


def _draw_speedup(axes, name: str, rows: list[dict], colour: str) -> None:
    sizes = [row["bytes"] for row in rows]
    axes.plot(sizes, [row["speedup"] for row in rows], "o-", color=colour, label=name)
    low, high = ([row[key] for row in rows] for key in ("speedup_low", "speedup_high"))
    axes.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)


def _draw_bound(axes, rows: list[dict]) -> None:
    plain = [row for row in rows if row["wire_dtype"] == row["dtype"] and row["bound_share"]]
    bound = {row["bytes"]: row["busbw_bytes_per_s"] / row["bound_share"] / 1e9 for row in plain}
    if bound:
        axes.plot(sorted(bound), [bound[size] for size in sorted(bound)], "k:", label="bound, calibrated in this run")


def title_of(header: dict, kind: tuple | None) -> str:
    """What was measured and where; that ranks shared cores, if so."""
    what = f"{kind[0]} {kind[1]}, {kind[2]} place, " if kind else "nothing was measured, "
    ranks, nodes = words.plural(header["ranks"], "rank"), words.plural(header["nodes"], "node")
    crowd = f", {header['crowded']}" if header["crowded"] else ""
    links = header["calibration"]["links"].values()
    busy = "".join(f", links busy {words.rate(link['busy_bytes_per_s'])}" for link in links)
    return f"{what}{ranks} on {nodes}, {header['library']}{crowd}{busy}"
