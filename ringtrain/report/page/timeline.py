"""The timeline of ranks as a figure: two rows a rank, its work and the buckets on their way."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ringtrain.report.trace import DEVICE, LOOP, Slice
from ringtrain.show.figures import GREY, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RANKS = 16  # more rows cannot be read
MOST_ITERATIONS = 3
FINEST = 1 / 800  # of the width: shorter slices are joined with their neighbours
# The kinds of work, by the first word of a slice's name; the legend's order.
LOAD, FORWARD, BACKWARD, UPDATE, SERVE, WAIT, TRAVEL = (
    "load", "forward", "backward", "update", "start, test of a bucket", "wait for other ranks",
    "bucket under way",
)  # fmt: skip
COLOURS = {
    LOAD: "#999999",
    FORWARD: "#0072b2",
    BACKWARD: "#009e73",
    UPDATE: "#cc79a7",
    SERVE: "#e69f00",
    WAIT: "#d55e00",
    TRAVEL: "#56b4e9",
}
OF_WORD = {
    "load": LOAD, "forward": FORWARD, "backward": BACKWARD, "update": UPDATE, "start": SERVE, "test": SERVE,
    "wait": WAIT, "reduceloss": WAIT, "checkloss": WAIT,
}  # fmt: skip
ABOVE = (WAIT, SERVE)  # drawn over the pass that they interrupt


Row = tuple[str, Sequence[tuple[str, Slice]], float, float]  # label, slices with their kinds, distance below, height


def timeline_figure(ranks: Mapping[int, Sequence[Slice]]) -> "Figure":
    """Return the last traced iterations of the first ranks. ``ranks``: slices by rank, with some"""
    from matplotlib.patches import Patch

    shown = dict(list(ranks.items())[:MOST_RANKS])
    starts = _iterations(shown)[-MOST_ITERATIONS:]
    begin = starts[0][0] if starts else min(each.start_ns for slices in shown.values() for each in slices)
    kept = {rank: [each for each in slices if each.start_ns >= begin] for rank, slices in shown.items()}
    span = max((each.stop_ns for slices in kept.values() for each in slices), default=begin) - begin or 1
    rows = [row for rank, slices in kept.items() for row in _rows(rank, slices)]
    heights = list(accumulate(below for _, _, below, _ in rows))
    figure = new_figure(11, 1.4 + 0.27 * heights[-1])
    axes = figure.subplots()
    for y, (_, drawn, _, height) in zip(heights, rows, strict=True):
        _draw(axes, y, drawn, height, begin, span)
    for start, name in starts:
        x = (start - begin) / 1e6
        axes.axvline(x, color=GREY, linewidth=0.7, linestyle=":", zorder=0)
        axes.annotate(name, (x, 0.1), (3, 0), textcoords="offset points", fontsize=8, va="top", color=GREY)
    axes.set_yticks(heights, [label for label, *_ in rows], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set(xlim=(0, span / 1e6), ylim=(heights[-1] + 0.6, 0), xlabel="ms")
    kinds = {kind for _, drawn, _, _ in rows for kind, _ in drawn}
    handles = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in kinds]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), fontsize=8)
    return figure


def _rows(rank: int, slices: Sequence[Slice]) -> list[Row]:
    """Return the rows of a rank: its loop, its device if it has one, and its buckets."""
    device, travel = _of_kinds(slices, DEVICE), [(TRAVEL, each) for each in slices if each.track not in (LOOP, DEVICE)]
    rows: list[Row] = [(f"rank {rank}", _of_kinds(slices, LOOP), 1.5, 0.8)]
    rows += [("device", device, 1.0, 0.8)] if device else []
    return rows + ([("buckets", travel, 0.85, 0.5)] if travel else [])


def _of_kinds(slices: Sequence[Slice], track: str) -> list[tuple[str, Slice]]:
    """Return the slices of a track with their kinds, without those that are not drawn, as a whole iteration."""
    kinds = [(OF_WORD.get(each.name.split(" ")[0]), each) for each in slices if each.track == track]
    return [(kind, each) for kind, each in kinds if kind is not None]


def _draw(axes: "Axes", y: float, slices: Sequence[tuple[str, Slice]], height: float, begin: int, span: int) -> None:
    of_kind: dict[str, list[tuple[int, int]]] = {}
    for kind, each in slices:
        of_kind.setdefault(kind, []).append((each.start_ns - begin, each.stop_ns - begin))
    for kind in sorted(of_kind, key=lambda kind: (kind in ABOVE, list(COLOURS).index(kind))):
        joined = _joined(sorted(of_kind[kind]), span * FINEST)
        bars = [(start / 1e6, (stop - start) / 1e6) for start, stop in joined]
        alpha = 0.6 if kind == TRAVEL else 1.0
        axes.broken_barh(bars, (y - height / 2, height), facecolors=COLOURS[kind], alpha=alpha, linewidth=0)


def _joined(spans: Sequence[tuple[int, int]], least: float) -> list[tuple[int, int]]:
    """Join spans that overlap or are nearer to one another than a picture shows. ``spans``: in the order of starts"""
    joined: list[tuple[int, int]] = []
    for start, stop in spans:
        if joined and start - joined[-1][1] <= least:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _iterations(ranks: Mapping[int, Sequence[Slice]]) -> list[tuple[int, str]]:
    """Return (start, name) of each iteration: when the first rank begins it."""
    starts: dict[str, int] = {}
    for each in (each for slices in ranks.values() for each in slices):
        if each.track == LOOP and each.name.startswith("iteration "):
            starts[each.name] = min(each.start_ns, starts.get(each.name, each.start_ns))
    return sorted((start, name) for name, start in starts.items())
