"""One row of a sweep: an algorithm on one size, type, operation and placement; measured, wrong, or refused.

Every row has every key; keys that do not apply are None. Units: ``…_s`` seconds, ``bytes`` of the buffer on each rank,
``…_per_s`` a second. ``wire_dtype`` is the type in messages: ``dtype``, or the type they are rounded to.
"""

from collections.abc import Sequence

import numpy as np

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.allreduce.wire_formats import NONE
from ringtrain.bench.measure.buffers import NO_WAY
from ringtrain.bench.measure.checks import Verdict
from ringtrain.bench.measure.collectives import BARRIER, COLLECTIVES
from ringtrain.bench.measure.timing import Samples
from ringtrain.bench.measure.trials import MeasuredCollective, trial_name

OK, WRONG, REFUSED = "ok", "wrong", "refused"
NOISY_CV = 0.10
RESAMPLES, CONFIDENCE = 1000, 0.95
IN_PLACE, OUT_OF_PLACE = "in", "out"
IDENTITY = (
    *("collective", "algorithm", "transport", "device", "way", "memory", "ranks", "nodes"),
    *("bytes", "count", "dtype", "wire_dtype", "op", "placement"),
)
# What names a row of another sweep.
KEY = tuple(name for name in IDENTITY if name not in ("count", "transport", "memory"))
MEASURED = (
    *("repeats", "median_s", "min_s", "p5_s", "p95_s", "p99_s", "cv", "skew_s"),
    *("algbw_bytes_per_s", "busbw_bytes_per_s", "wire_bytes", "bound_s", "bound_share"),
    *("speedup", "speedup_low", "speedup_high"),
)
JUDGED = ("wrong", "same_on_ranks", "same_over_repeats")
STATED = ("status", "reason", "unreliable", "samples_s")
COLUMNS = (*IDENTITY, *MEASURED, *JUDGED, *STATED)


def identity(job: MeasuredCollective, algorithm: str, carrier: str | None, wire: str = NONE, way: str = NO_WAY) -> dict:
    """Return the identity of a row. ``carrier``: the transport of the algorithm; None if it does not run, and then the
    memory is None too. ``way``: way of its messages, among several.
    """
    return {
        "collective": job.collective,
        "algorithm": algorithm,
        "transport": carrier,
        "device": job.buffers.device,
        "way": way,
        "memory": None if carrier is None else job.memory,
        "ranks": job.transport.size,
        "nodes": job.transport.nodes,
        "bytes": job.nbytes,
        "count": job.nbytes // job.numbers.itemsize,
        "dtype": job.numbers.name,
        "wire_dtype": job.numbers.name if wire == NONE else wire,
        "op": job.op if COLLECTIVES[job.collective].adds else "none",
        "placement": IN_PLACE if job.source is None else OUT_OF_PLACE,
    }


def refused(named: dict, reason: str) -> dict:
    return {**dict.fromkeys(COLUMNS), **named, "status": REFUSED, "reason": reason}


def measured(
    named: dict,
    samples: Samples,
    wire_bytes: int | None,
    bound_s: float | None,
    crowded: str | None,
    why: str | None = None,
) -> dict:
    """Return the row of a measured algorithm.

    wire_bytes: bytes that the busiest rank sends
    crowded:    why ranks share cores, or None
    why:        reason of auto's choice
    """
    slowest = [max(times) for times in samples]
    figures = summarise(slowest)
    noisy = f"cv {figures['cv']:.0%}" if figures["cv"] > NOISY_CV else None
    facts = {
        **figures,
        "repeats": len(samples),
        "skew_s": summarise([max(times) - min(times) for times in samples])["median_s"],
        **rates(named, figures["median_s"], bound_s),
        "wire_bytes": wire_bytes,
        "bound_s": bound_s,
        "status": OK,
        "reason": why,
        "unreliable": [why for why in (crowded, noisy) if why],
        "samples_s": slowest,
    }
    return {**dict.fromkeys(COLUMNS), **named, **facts}


def rates(named: dict, median_s: float, bound_s: float | None) -> dict:
    algbw, ranks = named["bytes"] / median_s, named["ranks"]
    return {
        "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": algbw * COLLECTIVES[named["collective"]].travels(ranks),
        "bound_share": None if bound_s is None else bound_s / median_s,
    }


def with_verdict(row: dict, verdict: Verdict | None) -> dict:
    if verdict is None:
        return row
    judged = {name: getattr(verdict, name) for name in JUDGED}
    reason = f"{verdict.wrong:,} wrong elements" if verdict.wrong else None
    return {**row, **judged, "status": WRONG if verdict.wrong else row["status"], "reason": reason or row["reason"]}


def with_speedup(row: dict, base: dict | None, seed: int) -> dict:
    """Return the row with its speedup over the MPI's own all-reduce, the row ``base``; None if that was not measured,
    or is this row.
    """
    if base is None or base is row:
        return row
    value, low, high = ratio(base["samples_s"], row["samples_s"], True, seed)
    return {**row, "speedup": value, "speedup_low": low, "speedup_high": high}


def fastest(rows: Sequence[dict]) -> dict:
    """Return the fastest of one contender's rows in several kinds of memory, with a note; a wrong row is never hidden
    by another.
    """
    best, *others = sorted(rows, key=lambda row: (row["status"] != WRONG, row["median_s"]))
    if not others or best["status"] == WRONG:
        return best
    beaten = (f"{row['median_s'] / best['median_s']:.2f} times as fast as in {row['memory']} memory" for row in others)
    return {**best, "reason": ", ".join(beaten)}


def quieter(row: dict, other: dict) -> dict:
    """Return the less disturbed of two rows of the same contender: the faster one."""
    return min(row, other, key=lambda each: each["median_s"] or 0)


def asked_name(row: dict) -> str:
    """Return the algorithm as the user named it: a row of any choice of ``auto`` is a row of ``auto``."""
    return AUTO if row["algorithm"].startswith(f"{AUTO}:") else row["algorithm"]


def group(row: dict) -> str:
    """Return a row's collective, type, operation and placement in words."""
    if row["collective"] == BARRIER:
        return BARRIER
    adds = "" if row["op"] == "none" else f" {row['op']},"
    where = "in place" if row["placement"] == IN_PLACE else "out of place"
    return f"{row['collective']} of {row['dtype']},{adds} {where}"


def label(row: dict) -> str:
    """Return the algorithm, its wire if that rounds, and its way if there are several."""
    return trial_name(row["algorithm"], NONE if row["wire_dtype"] == row["dtype"] else row["wire_dtype"], row["way"])


# ── statistics ────────────────────────────────────────────────────────────────────────────────────────────────────────
def summarise(samples_s: Sequence[float]) -> dict:
    """Return median, extremes and spread of iterations' times, each the slowest rank's. Units: seconds; cv is a
    fraction.
    """
    x = np.asarray(samples_s)
    p5, median, p95, p99 = np.percentile(x, [5, 50, 95, 99])
    mean = x.mean()
    return {
        "median_s": float(median),
        "min_s": float(x.min()),
        "p5_s": float(p5),
        "p95_s": float(p95),
        "p99_s": float(p99),
        "cv": float(x.std() / mean) if mean else 0.0,
    }


def ratio(a_s: Sequence[float], b_s: Sequence[float], paired: bool, seed: int) -> tuple[float, float, float]:
    """Return median(a)/median(b), and the ends of its 95 % confidence interval by the bootstrap.

    ``paired`` samples are of the same repetitions and are drawn together: interleaved runs share their disturbances.
    Source: Efron & Tibshirani, An introduction to the bootstrap, 1993, chapter 13.
    """
    a, b = np.asarray(a_s), np.asarray(b_s)
    rng = np.random.default_rng(seed)
    drawn_a = rng.integers(0, a.size, (RESAMPLES, a.size))
    drawn_b = drawn_a if paired else rng.integers(0, b.size, (RESAMPLES, b.size))
    ratios = np.median(a[drawn_a], axis=1) / np.median(b[drawn_b], axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(np.median(a) / np.median(b)), float(low), float(high)
