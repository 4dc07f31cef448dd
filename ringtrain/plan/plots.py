"""Pictures of predictions: examples/s and efficiency over ranks; seconds to a target over links."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringtrain.humanize import RATE
from ringtrain.plan.prediction import PlanRow, PlanSettings
from ringtrain.show.figures import COLOURS, GREY, doubling_x, entitle, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":")
MANY = 8  # numbers of ranks from which on their labels are turned


def plan_figure(model: str, settings: PlanSettings, rows: Sequence[PlanRow]) -> "Figure":
    figure = new_figure(11, 4.6)
    rate, efficiency = figure.subplots(1, 2)
    for number, (name, curve) in enumerate(_curves(rows)):
        ranks = [row.ranks for row in curve]
        look: dict = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        look |= {"marker": "o", "markersize": 3.5, "label": name}
        rate.plot(ranks, [row.images_per_s for row in curve], **look)
        efficiency.plot(ranks, [100 * row.efficiency for row in curve], **look)
    counts = sorted({row.ranks for row in rows})
    alone = rows[0].images_per_s / rows[0].efficiency / rows[0].ranks
    rate.set(yscale="log", ylabel=RATE)
    ideal = [alone * count for count in counts]
    rate.plot(counts, ideal, color=GREY, linewidth=1, label="ideal")
    rate.set_yticks(ideal, [f"{each:,.0f}" for each in ideal])  # a power of ten may not be among so few
    efficiency.set(ylabel="efficiency, %", ylim=(0, 105 * max(1, *(row.efficiency for row in rows))))
    for axes in (rate, efficiency):
        turned = 45 if len(counts) > MANY else 0
        doubling_x(axes, {count: f"{count:,}" for count in counts}, "ranks", rotation=turned)
    rate.legend(fontsize="small")
    entitle(figure, f"{model}, {settings.batch_text}, {settings.per_node} ranks a node: predicted")
    return figure


def _curves(rows: Sequence[PlanRow]) -> list[tuple[str, list[PlanRow]]]:
    """Return a curve for each strategy, and with several rows at one number of ranks for each algorithm too."""
    one_each = len({(row.ranks, row.strategy) for row in rows}) == len(rows)
    curves: dict[str, list[PlanRow]] = {}
    for row in rows:
        label = row.strategy if one_each else f"{row.strategy} {row.algorithm}".strip()
        curves.setdefault(label, []).append(row)
    return list(curves.items())


def target_figure(title: str, rows: Sequence[dict]) -> "Figure":
    """Draw seconds with their errors over links; what never gets to the target is in the legend alone."""
    from matplotlib.ticker import LogFormatter

    figure = new_figure(8, 4.6)
    axes, links = figure.subplots(), list(dict.fromkeys(row["link"] for row in rows))
    for number, name in enumerate(dict.fromkeys(row["strategy"] for row in rows)):
        curve = [row for row in rows if row["strategy"] == name and row["seconds"] is not None]
        seconds = [row["seconds"] for row in curve]
        below = [row["seconds"] - row["seconds_low"] for row in curve]
        above = [(row["seconds_high"] or row["seconds"]) - row["seconds"] for row in curve]
        look: dict = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        look |= {"marker": "o", "markersize": 3.5, "capsize": 3, "label": name if curve else f"{name}: never"}
        axes.errorbar([links.index(row["link"]) for row in curve], seconds, [below, above], **look)
    axes.set(yscale="log", ylabel="seconds to the target", xlabel="link of a node, each direction")
    axes.yaxis.set_major_formatter(LogFormatter())  # without powers, as of STYLE's axes
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.set_xticks(range(len(links)), links)
    axes.legend(fontsize="small")
    entitle(figure, title)
    return figure
