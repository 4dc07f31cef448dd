"""Predictions as text and JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from ringtrain.humanize import format_bytes
from ringtrain.plan import texts
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanRow, PlanSettings, last_that_pays, winner
from ringtrain.tables import text_lines

HEAD = (
    "ranks",
    "nodes",
    "strategy",
    "algorithm",
    "step ms",
    "exposed ms",
    "images/s",
    "efficiency",
    "a rank",
    "node h",
)


def plan_lines(layers: LayerTimes, settings: PlanSettings, rows: Sequence[PlanRow], price: float | None) -> list[str]:
    """Return a head, a row for each prediction with a star at the fastest of its ranks, notes, and what wins. The last
    column is of a million images: hours of a node, or their price."""
    which = texts.BATCH_OF_A_RANK if settings.weak else texts.BATCH_OF_ALL
    head = (
        f"# {layers.model}, {which(images=settings.batch)}, {settings.per_node} a node, overlap {settings.overlap}; "
        "predicted from measured layers and all-reduces"
    )
    last = last_that_pays(rows)
    best = {count: winner(rows, count) for count in sorted({row.ranks for row in rows})}
    cells = [_cells(row, row is best[row.ranks], price) for row in rows]
    title = (*HEAD[:-1], "price" if price is not None else HEAD[-1])
    return [
        head,
        *text_lines([title, *cells], "rrllrrrrrr"),
        *(f"# {note}" for note in layers.notes),
        *_winners(best),
        f"up to {max(best):,} ranks each further rank adds at least half the images/s of one rank alone"
        if last is None
        else f"beyond {last:,} ranks a further rank adds less than half the images/s of one rank alone",
    ]


def _cells(row: PlanRow, is_best: bool, price: float | None) -> tuple[str, ...]:
    hours = row.node_hours_per_million
    return (
        f"{row.ranks:,}",
        f"{row.nodes:,}",
        row.strategy + (" *" if is_best and row.ranks > 1 else ""),
        row.algorithm,
        f"{1e3 * row.step_s:,.2f}",
        f"{1e3 * row.exposed_s:,.2f}",
        f"{row.images_per_s:,.0f}",
        f"{100 * row.efficiency:.0f} %",
        format_bytes(row.memory_bytes),
        f"{hours:,.2f}" if price is None else f"{price * hours:,.2f}",
    )


def _winners(best: dict[int, PlanRow]) -> list[str]:
    """Say which strategy is the fastest, and from where on another one is."""
    found = [(count, row.strategy, row.algorithm) for count, row in best.items() if count > 1]
    changes = [
        each for before, each in zip([None, *found], found, strict=False) if not before or before[1:] != each[1:]
    ]
    return [
        f"from {ranks:,} ranks on the fastest is {strategy} ({algorithm})" for ranks, strategy, algorithm in changes
    ]


def json_text(layers: LayerTimes, settings: PlanSettings, rows: Sequence[PlanRow]) -> str:
    found = {
        "model": layers.model,
        "settings": asdict(settings),
        "notes": list(layers.notes),
        "last_that_pays": last_that_pays(rows),
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(found, indent=1) + "\n"
