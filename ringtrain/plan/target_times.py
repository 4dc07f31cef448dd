"""The time to a target: the iterations that measured curves take to it, times the predicted step over each link.

At a fixed number of ranks the loss by iteration of a strategy that can be repeated does not depend on the link; of an
exact one not on the ranks either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError
from ringtrain.exchange.parts import PARTNER, PARTS, parts_of
from ringtrain.humanize import plural
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.prediction import PlanRow, PlanSettings, predict
from ringtrain.report.comparison.logs import RunLog, read_run
from ringtrain.report.comparison.over_seeds import variants_by_seed
from ringtrain.report.comparison.rows import COMMON, difference
from ringtrain.report.comparison.target import Target
from ringtrain.runs.summary import RunSummary, list_runs

PLAN_ERROR = 0.15  # of a predicted step: as near are 89 of 99 of docs/plan.md
SHARED = ("model", "data", "train_examples", "batch", "loss")  # of runs whose iterations are comparable


@dataclass(frozen=True, slots=True)
class Curve:
    """The runs of one strategy, over seeds. iterations: of each, those to the target; infinite: it never got there"""

    name: str
    config: ExchangeConfig
    ranks: int
    exact: bool
    batch: int
    iterations: tuple[float, ...]


# ── curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_curves(folder: Path, model: str, target: Target) -> tuple[list[Curve], list[str]]:
    """Return the curves of the runs in and below a folder, and notes on those that are left out. Raises UsageError
    where there is none, for runs of several networks, data sets or batches or of another model than ``model``, and
    where no run reaches the target."""
    listed, notes = list_runs(folder)
    reasons = {run.value("name"): _unfit(run) for run in listed}
    notes += [f"{name} is left out: {reason}" for name, reason in reasons.items() if reason]
    fit = {run.value("name"): run for run in listed if not reasons[run.value("name")]}
    logs = [read_run(run.folder, name) for name, run in fit.items()]
    variant_of = variants_by_seed(logs)
    differences = [text for key in SHARED if (text := difference(logs, key, COMMON[key], variant_of))]
    if logs and logs[0].start["model"] != model:
        differences = [f"they are of {logs[0].start['model']}"]
    if differences or not logs:
        why = "; ".join(differences or notes or ["it has none"])
        raise UsageError(f"--curves {folder} wants runs of one network, {model}, data set and batch: {why}")
    groups: dict[str, list[RunLog]] = {}
    for log in logs:
        groups.setdefault(variant_of[log.name], []).append(log)
    curves = [_curve(name, group, _exchange_of(fit[group[0].name]), target) for name, group in groups.items()]
    if not any(isfinite(at) for curve in curves for at in curve.iterations):
        best = [f"{log.name} {score:.4g}" for log in logs if (score := target.best(log)) is not None]
        raise UsageError(f"--target {target.text}: no run in {folder} has it; their best: {', '.join(best) or 'none'}")
    return curves, notes


def _unfit(run: RunSummary) -> str:
    """Return why a run gives no curve, or nothing."""
    if not run.options:
        return "its options cannot be read"
    config = _exchange_of(run)
    if config.strategy not in PARTS:
        return f"plans know no strategy {config.sync}"
    if config.average_from or config.compress_from:
        return "its exchange changes on its way (--average-from, --compress-from)"
    parts = parts_of(config)
    if parts.together or parts.partners == PARTNER:
        return ""
    how = "wait for no other" if parts.apart is None else f"are up to {plural(parts.apart, 'iteration')} apart"
    return f"its ranks {how}, so that its curve depends on the link and cannot be repeated"


def _exchange_of(run: RunSummary) -> ExchangeConfig:
    return ExchangeConfig(**{each.name: run.options[each.name] for each in fields(ExchangeConfig)})


def _curve(name: str, logs: Sequence[RunLog], config: ExchangeConfig, target: Target) -> Curve:
    start, reached = logs[0].start, [target.reached(log) for log in logs]
    iterations = tuple(inf if at is None else at for at in reached)
    return Curve(name, config, start["ranks"], bool(start["exact"]), start["batch"], iterations)


def at_ranks(curves: Sequence[Curve], asked: int | None) -> tuple[int, list[Curve], list[str]]:
    """Return the number of ranks, the curves that hold for it, and a note for each other. Raises UsageError where
    curves do not say the number, or none holds for it."""
    counts = sorted({curve.ranks for curve in curves if not curve.exact} or {curve.ranks for curve in curves})
    ranks = asked or counts[0]
    fitting = [curve for curve in curves if curve.exact or curve.ranks == ranks]
    if not fitting or (asked is None and len(counts) > 1):
        raise UsageError(f"the curves are of {', '.join(map(str, counts))} ranks: give one of these by -n")
    others = [curve for curve in curves if curve not in fitting]
    return ranks, fitting, [f"{each.name} is left out: its curve is of {plural(each.ranks, 'rank')}" for each in others]


# ── times ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def target_rows(
    layers: LayerTimes, links: Mapping[str, ExchangeTimes], curves: Sequence[Curve], ranks: int, per_node: int
) -> list[dict[str, Any]]:
    """Return a row for each link and curve. ``iterations``, ``seconds``: the median over seeds, None: never; ``…_low``
    and ``…_high`` of iterations are the seeds', of seconds the seeds' and the plan's error together; ``is_first``:
    whether the strategy is the first at the target over its link."""
    rows = []
    for link, exchanges in links.items():
        over = [_row(link, each, _step(layers, exchanges, each, ranks, per_node)) for each in curves]
        first = min(over, key=lambda row: inf if row["seconds"] is None else row["seconds"])
        rows += [row | {"is_first": row is first and row["seconds"] is not None} for row in over]
    return rows


def _step(layers: LayerTimes, exchanges: ExchangeTimes, curve: Curve, ranks: int, per_node: int) -> PlanRow:
    config = curve.config
    settings = PlanSettings(curve.batch, per_node=per_node, overlap=config.overlap, bucket_bytes=config.bucket_bytes)
    algorithms = [] if config.algorithm == "auto" else [config.algorithm]
    return predict(layers, exchanges, [ranks], [config], algorithms, settings)[0]


def _row(link: str, curve: Curve, step: PlanRow) -> dict[str, Any]:
    least, middle, most = min(curve.iterations), median(curve.iterations), max(curve.iterations)
    figures = {
        "iterations": middle,
        "iterations_low": least,
        "iterations_high": most,
        "seconds": middle * step.step_s,
        "seconds_low": least * step.step_s / (1 + PLAN_ERROR),
        "seconds_high": most * step.step_s / (1 - PLAN_ERROR),
    }
    facts = {"link": link, "strategy": curve.name, "ranks": step.ranks, "seeds": len(curve.iterations)}
    facts |= {"algorithm": step.algorithm, "step_s": step.step_s, "exposed_s": step.exposed_s}
    return facts | {name: each if isfinite(each) else None for name, each in figures.items()}
