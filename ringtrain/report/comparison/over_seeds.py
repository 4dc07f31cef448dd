"""Variants over seeds: means and standard deviations of runs that differ by seed alone."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ringtrain.config.resolve import for_continuation, read_run_file
from ringtrain.errors import UsageError
from ringtrain.humanize import plural
from ringtrain.report.comparison.logs import RunLog
from ringtrain.report.comparison.rows import COMMON, METRICS

ENDED = ("done", "early stop")
OVER_RANKS: dict[str, Callable] = {
    **dict.fromkeys(("bytes_sent", "bytes_received", "between_bytes"), sum),
    **dict.fromkeys(("held_bytes", "peak_bytes"), max),
}
MEANS = (
    "iterations", "examples", "test_loss", "best_test_loss", "test_accuracy", "best_test_accuracy",
    "accuracy_difference", *METRICS, "train_loss", "train_accuracy", "seconds",
    "images_per_s", "speed_ratio", "exposed_share", *OVER_RANKS,
)  # fmt: skip
SCORES = ("test_accuracy", "test_loss", "train_accuracy", "train_loss")


# ── which runs belong together ────────────────────────────────────────────────────────────────────────────────────────
def variants_by_seed(runs: Sequence[RunLog]) -> dict[str, str]:
    """Return name of a run → name of its variant: runs with the same settings and different seeds are of one variant,
    named by what their names share. Any other run is a variant of its own.
    """
    alike: dict[str, list[RunLog]] = {}
    for run in runs:
        alike.setdefault(_settings(run), []).append(run)
    names_of_variants: dict[str, str] = {run.name: run.name for run in runs}
    for group in alike.values():
        seeds = {run.start.get("seed") for run in group}
        if len(seeds) == len(group) > 1:
            names = [run.name for run in group]
            shared = _shared_name(names)
            names_of_variants |= dict.fromkeys(
                names, names[0] if shared in ("", *names_of_variants.values()) else shared
            )
    return names_of_variants


def _settings(run: RunLog) -> str:
    """Return all that a run was given but its seed, as text; its folder if the configuration is lost."""
    try:
        table = for_continuation(read_run_file(str(Path(run.folder) / "config.toml")))
    except UsageError:
        return run.folder
    facts = [run.start.get(key) for key in ("strategy", "plugins", *COMMON) if key != "seed"]
    return repr((facts, sorted({**table, "seed": None}.items())))


def _shared_name(names: Sequence[str]) -> str:
    """Return what all names begin with, in whole words and numbers, without a last "seed": a-seed-1, a-seed-2 → a."""
    words = [re.findall(r"[^\W\d_]+|\d+|[\W_]+", name) for name in names]
    shared = takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))
    return re.sub(r"[\W_]*(seed)?[\W_]*$", "", "".join(column[0] for column in shared))


# ── means ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def variant_rows(rows: Sequence[dict]) -> list[dict]:
    """Return a row a variant, from the rows of its runs: ``runs`` counts them, ``ended`` those that came to their end.
    A figure is the mean of these, and ``FIGURE_sd`` their sample standard deviation (n - 1), None of one run; bytes are
    sums over ranks, memory is the most of them.
    """
    of_variant: dict[str, list[dict]] = {}
    for row in rows:
        of_variant.setdefault(row["variant"], []).append(row)
    return [_variant_row(name, group) for name, group in of_variant.items()]


def _variant_row(name: str, group: Sequence[dict]) -> dict:
    ended = [row for row in group if row["outcome"] in ENDED]
    identity = next((row for row in group if row["strategy"] is not None), group[0])
    seeds = [row["seed"] for row in group if row["seed"] is not None]
    row: dict[str, Any] = {"name": name, "runs": len(group), "ended": len(ended), "seeds": seeds}
    row |= {key: identity[key] for key in ("strategy", "exact", "ranks", "nodes")}
    for key in MEANS:
        values = [value for each in ended if (value := _figure(each, key)) is not None and isfinite(value)]
        row[key] = mean(values) if values else None
        row[f"{key}_sd"] = stdev(values) if len(values) > 1 else None
    return row


def _figure(row: Mapping, key: str) -> float | None:
    if key not in OVER_RANKS:
        return row[key]
    by_rank = row[key]
    return OVER_RANKS[key](by_rank) if by_rank and None not in by_rank else None


def variant_notes(variants: Sequence[dict]) -> list[str]:
    """Return a note for each variant whose means leave out runs that did not come to their end."""
    return [
        f"{row['name']}: {row['ended']} of {plural(row['runs'], 'run')} came to the end, and means are of these alone"
        for row in variants
        if 0 < row["ended"] < row["runs"]
    ]
