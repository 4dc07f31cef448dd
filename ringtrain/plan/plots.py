"""A picture of predictions: images/s and efficiency over ranks."""

from collections.abc import Sequence

from ringtrain.plan import texts
from ringtrain.plan.prediction import PlanRow, PlanSettings

# Source: Okabe & Ito, Color universal design, 2008, without its black and its yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", "--", "-.", ":")


def plot_plan(model: str, settings: PlanSettings, rows: Sequence[PlanRow], path: str) -> None:
    """Draw to PNG, SVG or PDF, by the ending of ``path``. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    rate, efficiency = figure.subplots(1, 2)
    names = list(dict.fromkeys((row.strategy, row.algorithm) for row in rows if row.ranks > 1))
    strategies = list(dict.fromkeys(row.strategy for row in rows))
    for strategy in strategies:
        own = [row for row in rows if row.strategy == strategy]
        algorithms = list(dict.fromkeys(row.algorithm for row in own if row.ranks > 1))
        fastest = len({row.ranks for row in own}) == len(own)  # one row each: the algorithm may change on the way
        for number, algorithm in enumerate([""] if fastest else algorithms):
            curve = own if fastest else [row for row in own if row.algorithm == algorithm]
            style = {
                "color": COLOURS[strategies.index(strategy) % len(COLOURS)],
                "linestyle": DASHES[(number if not fastest else strategies.index(strategy)) % len(DASHES)],
                "marker": "o",
                "markersize": 3.5,
                "label": f"{strategy} {algorithm}".strip(),
            }
            ranks = [row.ranks for row in curve]
            rate.plot(ranks, [row.images_per_s for row in curve], **style)
            efficiency.plot(ranks, [100 * row.efficiency for row in curve], **style)
    counts = sorted({row.ranks for row in rows})
    alone = min(row.images_per_s / row.efficiency / row.ranks for row in rows)
    rate.plot(counts, [alone * count for count in counts], color="#888888", linewidth=1, label=texts.IDEAL)
    for axes in (rate, efficiency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [f"{count:,}" for count in counts], rotation=45 if len(counts) > 8 else 0)
        axes.minorticks_off()
        axes.set_xlabel(texts.RANKS_AXIS)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    rate.set_yscale("log")
    rate.set_ylabel(texts.RATE_AXIS)
    efficiency.set_ylabel(texts.EFFICIENCY_AXIS)
    efficiency.set_ylim(0, max(105, *(105 * row.efficiency for row in rows)))
    if names or strategies:
        rate.legend(frameon=False, fontsize="small")
    batch = (texts.BATCH_OF_A_RANK if settings.weak else texts.BATCH_OF_ALL)(images=settings.batch)
    figure.suptitle(texts.PICTURE_TITLE(model=model, batch=batch, per_node=settings.per_node), fontsize="medium")
    figure.savefig(path, dpi=150)
