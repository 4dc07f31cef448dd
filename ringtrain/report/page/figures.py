"""The figures of the page beside curves and timeline: communication by bucket, the confusion matrix."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringtrain.errors import plain
from ringtrain.humanize import format_bytes
from ringtrain.show.figures import COLOURS, name_rows, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BUCKETS = 16
MOST_COUNTS = 20  # classes of a matrix that has its counts in its cells
MOST_NAMES = 50  # and their names at its sides
NAME_WIDTH = 24  # characters of a class
SHARES = ("#d6e6f4", "#1f6fb8")  # colours of 0 % and 100 %; legible on light and dark


def buckets_figure(buckets: Sequence[dict]) -> "Figure":
    """Return a pair of bars a bucket: from start to end, and of that the time for which training waited.

    ``buckets``: of an ``exchange`` record; those that take longest are shown, in their order
    """
    longest = sorted(range(len(buckets)), key=lambda i: -(buckets[i]["total_s"] or 0))[:MOST_BUCKETS]
    shown = [buckets[i] for i in sorted(longest)]
    figure = new_figure(10, 1.2 + 0.42 * len(shown))
    axes = figure.subplots()
    for key, colour, height, label in (
        ("total_s", COLOURS[5], 0.7, "from start to end"),
        ("exposed_s", COLOURS[1], 0.35, "exposed: training waits"),
    ):
        values = [1e3 * (each[key] or 0.0) for each in shown]
        axes.barh(range(len(shown)), values, height=height, color=colour, label=label)
    names = [
        f"{plain(each['what'])}, {format_bytes(each['nbytes'])}\n{_shortened(each['spans'], 44)}" for each in shown
    ]
    name_rows(axes, names, "ms an iteration, rank 0, mean", 8)
    axes.margins(x=0.05)
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def confusion_figure(counts: Sequence[Sequence[int]], names: Sequence[str]) -> "Figure":
    """Return the matrix: a row a label, a column a prediction, coloured by the share of its row."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    size = len(counts)
    side = min(9.0, max(4.0, 1.6 + 0.36 * size))
    figure = new_figure(side + 1.5, side)
    axes = figure.subplots()
    shares = [[count / sum(row) if count else float("nan") for count in row] for row in counts]
    image = axes.imshow(
        shares, cmap=LinearSegmentedColormap.from_list("", SHARES), norm=PowerNorm(0.5, 0, 1), interpolation="none"
    )
    if size <= MOST_COUNTS:
        for i, row in enumerate(counts):
            for j, count in enumerate(row):
                if count:
                    ink = "#ffffff" if shares[i][j] > 0.3 else "#222222"  # light on a dark colour of the map
                    axes.text(j, i, f"{count:,}", ha="center", va="center", fontsize=8, color=ink)
    if size <= MOST_NAMES:
        shown = [_shortened(name, NAME_WIDTH) for name in names]
        upright = 0 if max(map(len, shown)) < 4 else 90
        axes.set_xticks(range(size), shown, rotation=upright, fontsize=8)
        axes.set_yticks(range(size), shown, fontsize=8)
    axes.set(xlabel="predicted", ylabel="label")
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    figure.colorbar(image, ax=axes, label="share of the label's examples", shrink=0.7)
    return figure


def _shortened(name: str, most: int) -> str:
    name = plain(name)
    return name if len(name) <= most else f"{name[: most - 1]}…"
