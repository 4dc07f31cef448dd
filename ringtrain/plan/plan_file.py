"""Files of ``ringtrain plan --json``, and the row in them that is of a run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ringtrain.config.record import TrainConfig, config_fields
from ringtrain.errors import plain
from ringtrain.plan.prediction import PlanRow, PlanSettings
from ringtrain.plan.strategies import of_strategy, typed
from ringtrain.records import SOME, Rules, load

AUTO = "auto"  # of --algorithm
DEFAULTS = TrainConfig().values()


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as it was written, in the file ``path``."""

    model: str
    settings: PlanSettings
    rows: Annotated[tuple[PlanRow, ...], Rules(lengths=SOME)]
    path: str = ""


def read_plan(path: str | Path) -> PlanFile:
    """Read a file of ``ringtrain plan --json``. Raises UsageError."""
    plan = load(PlanFile, path, "file of `ringtrain plan MODEL --json`", {"low": 0, "plain": True})
    return replace(plan, path=plain(str(path)))


def find_row(plan: PlanFile, config: TrainConfig, model: str, ranks: int, nodes: int) -> tuple[PlanRow | None, str]:
    """Return the row of a run: of its model, ranks, nodes, strategy, batch, settings and algorithm; with the algorithm
    ``auto`` the fastest. Without any: None, and the first of the run's facts that no row has, in words."""
    lacking = f"{plan.path} has no prediction of this run:"
    unplanned = _unplanned(config)
    if unplanned:
        return None, f"{lacking} plans are of runs without {unplanned}"
    left = [(_facts(plan, row), row) for row in plan.rows]
    for name, value in _wanted(config, model, ranks, nodes).items():
        known = dict.fromkeys(str(facts[name]) for facts, _ in left)
        left = [(facts, row) for facts, row in left if facts[name] == value]
        if not left:
            text = f"it has {name} {', '.join(known)}, and the run has {value}: `ringtrain plan` makes its row"
            return None, f"{lacking} {text}"
    return min((row for _, row in left), key=lambda row: row.step_s), ""


def _facts(plan: PlanFile, row: PlanRow) -> dict:
    return {
        "model": plan.model,
        "ranks": row.ranks,
        "nodes": row.nodes,
        "--sync": row.strategy,
        "--batch": row.batch,
        "--overlap": plan.settings.overlap,
        "--bucket-bytes": plan.settings.bucket_bytes,
        "--algorithm": row.algorithm,
    }


def _wanted(config: TrainConfig, model: str, ranks: int, nodes: int) -> dict:
    """Return the facts that decide about the speed of a run: one rank exchanges nothing."""
    exchange, wanted = config.exchange, {"model": model, "ranks": ranks, "nodes": nodes}
    wanted |= {"--sync": of_strategy(exchange), "--batch": config.run.batch}
    if ranks > 1:
        wanted |= {"--overlap": exchange.overlap, "--bucket-bytes": exchange.bucket_bytes}
        wanted |= {} if exchange.algorithm == AUTO else {"--algorithm": exchange.algorithm}
    return wanted


def _unplanned(config: TrainConfig) -> str:
    """Return the options that no plan covers, as typed."""
    values, fields = {**config.values(), "sync": config.exchange.strategy}, config_fields()
    names = [name for name in fields if not fields[name].metadata["planned"] and values[name] != DEFAULTS[name]]
    names += ["overlap"] if config.exchange.overlap == "forward" else []
    names += ["batch_norm"] if config.model.batch_norm == "sync" else []
    return " ".join(typed(name, values[name]) for name in names)
