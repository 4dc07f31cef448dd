"""How much longer ``auto`` takes than the best candidate did, on repetitions that the choice has not seen.

The least of many noisy medians lies below the truth, so that a perfect choice among equals would seem to be beaten. So
beside t_auto / t_best there is the same by halves: the best is picked in every second repetition and timed in the
others, and the other way round.
"""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean, geometric_mean, median

from ringtrain.bench.rows import OK, asked_name
from ringtrain.exchange.reductions import AUTO


def regrets(rows: Sequence[dict]) -> list[dict]:
    """Of each size: bytes, the choice and its reason, the best candidate, ``regret``, and ``regret_by_halves``. Rows of
    ``auto`` and of the candidates, from one interleaved sweep of one type and operation."""
    good = sorted((row for row in rows if row["status"] == OK), key=lambda row: row["bytes"])
    return [_regret(list(own)) for _, own in groupby(good, key=lambda row: row["bytes"])]


def _regret(rows: list[dict]) -> dict:
    auto = next(row for row in rows if asked_name(row) == AUTO)
    others = [row for row in rows if row is not auto]
    best = min(others, key=lambda row: row["median_s"])
    return {
        "bytes": auto["bytes"],
        "chosen": auto["algorithm"],
        "why": auto["reason"],
        "best": best["algorithm"],
        "regret": auto["median_s"] / best["median_s"],
        "regret_by_halves": geometric_mean(_against(auto, others, half) for half in (0, 1)),
    }


def _against(auto: dict, others: list[dict], half: int) -> float:
    picked = min(others, key=lambda row: median(row["samples_s"][half::2]))
    return median(auto["samples_s"][1 - half :: 2]) / median(picked["samples_s"][1 - half :: 2])


def summary(found: Sequence[dict]) -> dict:
    """Mean and worst of both over the sizes."""
    by_kind = {kind: [row[kind] for row in found] for kind in ("regret", "regret_by_halves")}
    return {kind: {"mean": fmean(values), "worst": max(values)} for kind, values in by_kind.items()}
