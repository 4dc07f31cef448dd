"""Files of ``ringtrain plan --json``, and the row in them that is of a run."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ringtrain.config.option import as_flag
from ringtrain.config.record import TrainConfig, config_fields
from ringtrain.errors import plain
from ringtrain.plan.prediction import PlanRow, PlanSettings
from ringtrain.plan.strategies import of_strategy
from ringtrain.records import SOME, Rules, load

AUTO = "auto"  # of --algorithm
DEFAULTS = TrainConfig().values()
PLANNED = {"overlap": ("none", "backward")}  # values that plans know
EVERY = DEFAULTS["average_every"]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as it was written, in the file ``path``."""

    model: str
    settings: PlanSettings
    rows: Annotated[tuple[PlanRow, ...], Rules(lengths=SOME)]
    path: str = ""


@dataclass(frozen=True, slots=True)
class SoughtRun:
    """A run whose prediction is looked for. batch: over all ranks"""

    config: TrainConfig
    model: str
    ranks: int
    nodes: int
    batch: int


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────
def read_plan(path: str | Path) -> PlanFile:
    """Read a file of ``ringtrain plan --json``. Raises UsageError."""
    plan = load(PlanFile, path, "file of `ringtrain plan MODEL --json`", {"low": 0, "plain": True})
    return replace(plan, path=plain(str(path)))


# ── looking for a row ─────────────────────────────────────────────────────────────────────────────────────────
def find_row(plan: PlanFile, run: SoughtRun) -> PlanRow | None:
    """Return the row of a run: of its model, ranks, nodes, strategy, batch, settings and algorithm; with the algorithm
    ``auto`` the fastest. None if the plan has none."""
    rows, _ = _fitting(plan, run)
    return min(rows, key=lambda row: row.step_s, default=None)


def missing_note(plan: PlanFile, run: SoughtRun) -> str:
    """Say why there is no row of a run, and which command makes it."""
    _, reason = _fitting(plan, run)
    text = f"{plan.path} has no prediction of this run: {reason}"
    return text if _unplanned(run.config) else f"{text}; `{_command(run)}` makes one"


def _fitting(plan: PlanFile, run: SoughtRun) -> tuple[list[PlanRow], str]:
    """Return the rows of a run; without any the first of the run's facts that no row has, in words."""
    unplanned = _unplanned(run.config)
    if unplanned:
        return [], f"plans are of runs without {unplanned}"
    left = [(_facts(plan, row), row) for row in plan.rows]
    for name, value in _wanted(run).items():
        known = dict.fromkeys(str(facts[name]) for facts, _ in left)
        left = [(facts, row) for facts, row in left if facts[name] == value]
        if not left:
            return [], f"it has {name} {', '.join(known)}, and the run has {value}"
    return [row for _, row in left], ""


def _facts(plan: PlanFile, row: PlanRow) -> dict:
    every = plan.settings.average_every
    return {
        "model": plan.model,
        "ranks": row.ranks,
        "nodes": row.nodes,
        "--sync": row.strategy + f" --average-every {every}" * (row.strategy == "averaging" and every != EVERY),
        "--batch": row.batch,
        "--overlap": plan.settings.overlap,
        "--bucket-bytes": plan.settings.bucket_bytes,
        "--algorithm": row.algorithm,
    }


def _wanted(run: SoughtRun) -> dict:
    """Return the facts that decide about the speed of a run: one rank exchanges nothing."""
    config = run.config.exchange
    wanted = {"model": run.model, "ranks": run.ranks, "nodes": run.nodes}
    wanted |= {"--sync": of_strategy(config), "--batch": run.batch}
    if run.ranks > 1:
        wanted |= {"--overlap": config.overlap, "--bucket-bytes": config.bucket_bytes}
        wanted |= {} if config.algorithm == AUTO else {"--algorithm": config.algorithm}
    return wanted


def _unplanned(config: TrainConfig) -> str:
    """Return the options that no plan covers, as typed."""
    values, fields = {**config.values(), "sync": config.exchange.strategy}, config_fields()
    names = [name for name in fields if not fields[name].metadata["planned"] and values[name] != DEFAULTS[name]]
    names += [name for name, known in PLANNED.items() if values[name] not in known]
    names += ["batch_norm"] if config.model.batch_norm == "sync" else []
    return " ".join(_typed(name, values[name]) for name in names)


def _typed(name: str, value) -> str:
    return as_flag(name) if value is True else f"{as_flag(name)} {shlex.quote(str(value))}"


def _command(run: SoughtRun) -> str:
    """Return the command that makes the row of a run."""
    values = run.config.values()
    options = [
        f"-n {run.ranks}",
        f"--per-node {-(-run.ranks // run.nodes)}",
        _typed("sync", of_strategy(run.config.exchange)),
        f"-b {run.batch}",
        *(
            _typed(name, values[name])
            for name in ("algorithm", "overlap", "bucket_bytes")
            if values[name] != DEFAULTS[name]
        ),
    ]
    layers = f"{shlex.quote(run.model)} --layers LAYERS.json"
    return f"ringtrain plan {layers} --fabric SWEEP.json {' '.join(options)} --json PLAN.json"
