"""Runs side by side: a row of figures for each, and notes about their differences."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean

from ringtrain.report.comparison.logs import CUT_SHORT, RunLog
from ringtrain.show.tables import NOTHING

# The settings that runs should share, and the notes on those that differ.
COMMON = {
    "model": "models",
    "data": "data sets",
    "train_examples": "numbers of training examples",
    "batch": "batches",
    "dtype": "types",
    "precision": "precisions",
    "loss": "losses",
    "optimizer": "optimizers",
    "lr": "learning rates",
    "schedule": "schedules",
    "seed": "seeds",
    "ranks": "numbers of ranks",
    "nodes": "numbers of nodes",
    "device": "devices",
    "version": "versions of ringtrain",
}

BEFORE = {"precision": "float32", "loss": "ce"}  # of logs of earlier versions


@dataclass(frozen=True, slots=True)
class FailedVariant:
    """A variant without a log: its name, and the reason."""

    name: str
    text: str


def rows_of(runs: Sequence[RunLog | FailedVariant], variants: Mapping[str, str] | None = None) -> list[dict]:
    """Return a row a run, in the given order; figures missing in the log are None. Units: bytes, seconds, fractions;
    lists are by rank. Differences are to the first row that has the figure.

    variants: name of a run → name of its variant, for runs over seeds: differences are then to the run of the first
    variant with the same seed, which began with the same weights and order of examples
    """
    rows = [dict.fromkeys(FIELDS) | _figures(run) for run in runs]
    for row in rows:
        row["variant"] = variants[row["name"]] if variants else None
    for row in rows:
        accuracy, other = row["test_accuracy"], _reference(rows, row, "test_accuracy")
        row["accuracy_difference"] = None if accuracy is None or other is None else accuracy - other
        row["speed_ratio"] = _over(row["images_per_s"], _reference(rows, row, "images_per_s"))
    return rows


def _figures(run: RunLog | FailedVariant) -> dict:
    if isinstance(run, FailedVariant):
        return {"name": run.name, "outcome": "failed", "problem": run.text}
    start, end, ranks = run.start, run.end or {}, run.ranks or {}
    losses = [point.loss for point in run.test if point.loss is not None]
    accuracies = [point.accuracy for point in run.test if point.accuracy is not None]
    row = {
        "name": run.name,
        "seed": start.get("seed"),
        "folder": run.folder,
        "outcome": run.outcome,
        "problem": (run.failed or {}).get("text"),
        "strategy": start.get("strategy"),
        "exact": start.get("exact"),
        "ranks": start.get("ranks"),
        "nodes": start.get("nodes"),
        "iterations": run.iterations,
        "examples": run.train[-1].examples if run.train else 0,
        "test_loss": losses[-1] if losses else None,
        "best_test_loss": min(losses, default=None),
        "test_accuracy": accuracies[-1] if accuracies else None,
        "best_test_accuracy": max(accuracies, default=None),
        **{name: run.test[-1].metrics.get(name) for name in METRICS if run.test},
        "train_loss": None if run.test else _end_of([point.loss for point in run.train]),
        "train_accuracy": None if run.test else _end_of([point.accuracy for point in run.train]),
        "seconds": max((point.seconds for point in (*run.train[-1:], *run.test[-1:])), default=None),
        "images_per_s": end.get("images_per_s") or run.last_rate,
        "exposed_share": end.get("exposed_share"),
        "held_bytes": _held(ranks),
        "updates_per_s": _rates(ranks),
        "lag": {name: _lag(lags) for name, lags in (ranks.get("lag") or {}).items()},
    }
    return row | {name: ranks.get(name) for name in BY_RANK}


METRICS = ("top5_accuracy", "perplexity", "mean_iou", "f1", "rmse", "mae", "r2")  # of the last evaluation
BY_RANK = (
    "images", "updates", "training_s", "exposed_s", "bytes_sent", "bytes_received", "between_bytes", "weights_bytes",
    "gradient_bytes", "state_bytes", "peak_bytes",
)  # fmt: skip
FIELDS = (
    "name", "variant", "seed", "folder", "outcome", "problem", "strategy", "exact", "ranks", "nodes", "iterations",
    "examples", "test_loss", "best_test_loss", "test_accuracy", "best_test_accuracy", "accuracy_difference", *METRICS,
    "train_loss", "train_accuracy", "seconds", "images_per_s", "speed_ratio", "exposed_share",
    "held_bytes", "updates_per_s", "lag", *BY_RANK,
)  # fmt: skip


def _held(ranks: Mapping) -> list[int | None] | None:
    """Return weights, gradients and other bytes of each rank."""
    parts = [ranks.get(name) for name in ("weights_bytes", "gradient_bytes", "state_bytes")]
    if None in parts:
        return None
    return [None if None in parts_of_rank else sum(parts_of_rank) for parts_of_rank in zip(*parts, strict=True)]


def _end_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the last tenth of those that are known."""
    known = [value for value in values if value is not None]
    return mean(known[-max(1, len(known) // 10) :]) if known else None


def _rates(ranks: Mapping) -> list[float | None] | None:
    if ranks.get("updates") is None:
        return None
    return [_over(count, seconds) for count, seconds in zip(ranks["updates"], ranks["training_s"], strict=True)]


def _lag(counts: Mapping[str, int]) -> dict:
    """Return the median and the largest lag. ``counts``: lag → how often"""
    lags = sorted((int(lag), count) for lag, count in counts.items() if count)
    if not lags:
        return {"median": None, "largest": None}
    upto = list(accumulate(count for _, count in lags))
    return {"median": lags[bisect_left(upto, upto[-1] / 2)][0], "largest": lags[-1][0]}


def _reference(rows: Sequence[dict], row: dict, key: str) -> float | None:
    """Return the figure that the row's own is compared with."""
    first = next((other for other in rows if other[key] is not None), None)
    if first is None:
        return None
    if row["variant"] is None:
        return first[key]
    pair = first["variant"], row["seed"]
    return next((other[key] for other in rows if (other["variant"], other["seed"]) == pair), None)


def _over(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def notes_of(runs: Sequence[RunLog | FailedVariant], rows: Sequence[dict]) -> list[str]:
    """Return notes on unintended differences between the runs, and on runs that did not come to an end. ``rows``: of
    these runs. Those of one variant differ by seed alone, and differences are told by variants.
    """
    whole = [run for run in runs if isinstance(run, RunLog)]
    variants = {row["name"]: row["variant"] for row in rows if row["variant"]}
    notes = [note for key, what in COMMON.items() if (note := difference(whole, key, what, variants))]
    notes += [note for row in rows if (note := _ending(row))]
    resumed = [run.name for run in whole if run.start.get("resumed_at")]
    if resumed:
        notes.append(f"resumed, so that speed, bytes and memory are of the last part alone: {', '.join(resumed)}")
    lengths = {row["examples"] for row in rows if row["outcome"] == "done"}
    if len(lengths) > 1:
        notes.append("not all trained on as many examples: the picture has scores at equal examples")
    return notes


def difference(runs: Sequence[RunLog], key: str, what: str, variants: Mapping[str, str]) -> str | None:
    """Say which runs, or variants, differ in a setting of :data:`COMMON`; None where all have the same."""
    values: dict[str, list[str]] = {}
    for run in runs:
        values.setdefault(variants.get(run.name, run.name), []).append(_words(run.start.get(key, BEFORE.get(key))))
    holders: dict[str, list[str]] = {}
    for name, group in values.items():
        holders.setdefault(", ".join(sorted(set(group), key=group.index)), []).append(name)
    if len(holders) < 2:
        return None
    usual = max(holders, key=lambda value: len(holders[value]))
    others = [f"{value} ({', '.join(names)})" for value, names in holders.items() if value != usual]
    return f"different {what}: {usual}, but {'; '.join(others)}"


def _words(value) -> str:
    return f"{value:g}" if isinstance(value, float) else NOTHING if value is None else str(value)


def _ending(row: dict) -> str | None:
    if row["outcome"] == "done":
        return None
    if row["outcome"] == CUT_SHORT:
        return f"{row['name']}: the log ends after iteration {row['iterations']:,}, and does not say why"
    if row["problem"] is None:
        return f"{row['name']}: {row['outcome']} after iteration {row['iterations']:,}"
    return f"{row['name']}: {row['problem']}"


def least_and_most(values: Sequence | None) -> tuple | None:
    """Return (least, most) of a list by rank; None if a rank has no value."""
    return None if not values or None in values else (min(values), max(values))
