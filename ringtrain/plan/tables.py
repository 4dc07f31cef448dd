"""Predictions, and times to a target, as text, CSV and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from math import inf

from ringtrain.humanize import RATE, format_bytes, plural
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanRow, PlanSettings, last_that_pays, winner
from ringtrain.plan.target_times import PLAN_ERROR
from ringtrain.show import tables
from ringtrain.show.tables import Column, make_table, plain_lines

COLUMNS = (
    Column("ranks", "ranks", "", "{:,}"),
    Column("nodes", "nodes", "", "{:,}"),
    Column("strategy", "strategy", left=True),
    Column("algorithm", "algorithm", left=True),
    Column("step_s", "step ms", "", "{:,.2f}", scale=1e3),
    Column("exposed_s", "exposed ms", "", "{:,.2f}", scale=1e3),
    Column("images_per_s", RATE, "", "{:,.0f}"),
    Column("efficiency", "efficiency", "", "{:.0f} %", scale=100),
    Column("memory_bytes", "a rank", "", format_bytes),
)
ENDS = (("", ""), ("_low", "from"), ("_high", "to"))
LINK = Column(
    None, "link, strategy", form=lambda row: f"{row['link']} {row['strategy']}" + " *" * row["is_first"], left=True
)
TARGET_GROUPS = (
    [Column(f"iterations{end}", title or "iterations", "", "{:,.0f}", none="never") for end, title in ENDS],
    (
        *COLUMNS[4:6],
        *(Column(f"seconds{end}", title or "seconds", "", "{:,.4g}", none="never") for end, title in ENDS),
        COLUMNS[3],
    ),
)


def plan_lines(layers: LayerTimes, settings: PlanSettings, rows: Sequence[PlanRow], price: float | None) -> list[str]:
    """Return a head, a row for each prediction with a star at the fastest of its ranks, notes, and what wins. The last
    column is of a million examples: hours of a node, or their price."""
    head = (
        f"# {layers.model}, {settings.batch_text}, {settings.per_node} a node, overlap {settings.overlap}; "
        "predicted from measured layers and all-reduces"
    )
    last = last_that_pays(rows)
    best = {count: winner(rows, count) for count in sorted({row.ranks for row in rows})}
    winners = [(count, row.strategy, row.algorithm) for count, row in best.items() if count > 1]
    before = [(0, "", ""), *winners]
    changes = [each for each, last_one in zip(winners, before, strict=False) if each[1:] != last_one[1:]]
    stars = {id(row) for row in best.values() if row.ranks > 1}
    shown = [asdict(row) | {"strategy": row.strategy + " *" * (id(row) in stars)} for row in rows]
    title, scale = ("node h", 1) if price is None else ("price", price)
    cost = Column("node_hours_per_million", title, "", "{:,.2f}", scale=scale)
    return [
        head,
        *plain_lines(make_table((*COLUMNS, cost), shown)),
        *(f"# {note}" for note in layers.notes),
        *(
            f"from {ranks:,} ranks on the fastest is {strategy}" + (f" ({name})" if name else "")
            for ranks, strategy, name in changes
        ),
        f"up to {max(best):,} ranks each further rank adds at least half the {RATE} of one rank alone"
        if last is None
        else f"beyond {plural(last, 'rank')} a further rank adds less than half the {RATE} of one rank alone",
    ]


def target_lines(rows: Sequence[dict]) -> list[str]:
    """Return the map: a line for each link, with the strategy that reaches the target first there, when, and those
    that may be the first within the errors."""
    lines = []
    for first in (row for row in rows if row["is_first"]):
        high = first["seconds_high"] or inf
        near = [row for row in rows if row["link"] == first["link"] and (row["seconds_low"] or inf) < high]
        also = " or ".join(row["strategy"] for row in near if row is not first)
        when = "{seconds:,.4g} s ({seconds_low:,.4g} to {0})".format(f"{high:,.4g}" if high < inf else "never", **first)
        also = f"; within the errors {also}" if also else ""
        lines.append(f"{first['link']}: {first['strategy']} is the first, after {when}{also}")
    return lines


def target_json(layers: LayerTimes, target: str, rows: Sequence[dict], notes: Sequence[str]) -> str:
    first = {row["link"]: row["strategy"] for row in rows if row["is_first"]}
    facts = {"model": layers.model, "target": target, "plan_error": PLAN_ERROR, "first": first, "notes": list(notes)}
    return tables.json_text({**facts, "rows": rows})


def json_text(layers: LayerTimes, settings: PlanSettings, rows: Sequence[PlanRow]) -> str:
    content = {
        "model": layers.model,
        "settings": asdict(settings),
        "notes": list(layers.notes),
        "last_that_pays": last_that_pays(rows),
        "rows": [asdict(row) for row in rows],
    }
    return tables.json_text(content)
