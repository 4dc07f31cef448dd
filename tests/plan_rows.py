"""Files of plans, made row by row."""

import json
from dataclasses import asdict

from ringtrain.plan.prediction import PlanRow, PlanSettings


def plan_row(ranks=1, batch=64, step_s=0.1, **changed) -> PlanRow:
    """A row on one node, of an all-reduce by ring."""
    facts = {"nodes": 1, "strategy": "allreduce", "algorithm": "ring" if ranks > 1 else "", **changed}
    figures = {"compute_s": 0.05, "update_s": 0.01, "exposed_s": 0.02, "images_per_s": batch / step_s}
    rest = {"efficiency": 1.0, "memory_bytes": 1 << 20, "node_hours_per_million": 0.1}
    return PlanRow(ranks=ranks, batch=batch, step_s=step_s, **facts, **figures, **rest)


def plan_text(*rows: PlanRow, model="mlp", **settings) -> str:
    content = asdict(PlanSettings(**{"batch": 64, **settings}))
    return json.dumps({"model": model, "settings": content, "rows": [asdict(row) for row in rows]})
