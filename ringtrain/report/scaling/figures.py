"""Figures of scaling: medians over rounds with intervals, speed-up and efficiency.

The rounds are interleaved: each has a run of every number of ranks, so a speed-up is of two runs of the same round.
"""

from collections.abc import Sequence
from math import comb
from statistics import median

from ringtrain.report.comparison.logs import RunLog
from ringtrain.report.comparison.over_seeds import ENDED

CONFIDENCE = 0.95
FIELDS = (
    "scaling", "ranks", "nodes", "batch", "rounds",
    *(f"{name}{part}" for name in ("images_per_s", "step_s", "speedup", "efficiency", "exposed_s")
      for part in ("", "_low", "_high")),
    "confidence",
)  # fmt: skip


def sample_of(run: RunLog) -> dict | None:
    """Return the figures of one run that came to its end, from its own records; None if it did not.

    images_per_s: the median over iterations after the warm-up, all ranks
    step_s:       of one iteration at that rate
    exposed_s:    of one iteration, for which a rank waited for communication: the median over ranks of means
    """
    rate = (run.end or {}).get("images_per_s")
    if run.outcome not in ENDED or not rate or not run.start.get("batch"):
        return None
    of_ranks = zip(run.ranks["exposed_s"], run.ranks["updates"], strict=True) if run.ranks else ()
    waits = [seconds / updates for seconds, updates in of_ranks if updates]
    return {
        "ranks": run.start["ranks"],
        "nodes": run.start.get("nodes"),
        "batch": run.start["batch"],
        "images_per_s": rate,
        "step_s": run.start["batch"] / rate,
        "exposed_s": median(waits) if waits else None,
        "folder": run.folder,
    }


def scaling_rows(samples: Sequence[dict]) -> list[dict]:
    """Return a row for each kind of scaling and number of ranks, strong before weak.

    samples: of :func:`sample_of`, with ``scaling``, "strong" or "weak", and ``round``
    A figure is a median; FIGURE_low and FIGURE_high are the ends of its interval (:func:`median_interval`), None of one
    round and of a speed-up of 1 by definition. ``speedup`` and ``efficiency`` are against the smallest number of ranks.
    """
    rows = []
    for scaling in sorted({sample["scaling"] for sample in samples}):
        alike = [sample for sample in samples if sample["scaling"] == scaling]
        counts = sorted({sample["ranks"] for sample in alike})
        base = {sample["round"]: sample["images_per_s"] for sample in alike if sample["ranks"] == counts[0]}
        for ranks in counts:
            rows.append(_row([sample for sample in alike if sample["ranks"] == ranks], base, counts[0]))
    return rows


def _row(samples: Sequence[dict], base: dict[int, float], fewest: int) -> dict:
    ratios = [sample["images_per_s"] / base[sample["round"]] for sample in samples if sample["round"] in base]
    row = {key: samples[0][key] for key in ("scaling", "ranks", "nodes", "batch")} | {"rounds": len(samples)}
    row["confidence"] = median_interval([sample["images_per_s"] for sample in samples])[3]
    values = {key: [sample[key] for sample in samples] for key in ("images_per_s", "step_s", "exposed_s")}
    values["speedup"] = ratios
    values["efficiency"] = [ratio * fewest / samples[0]["ranks"] for ratio in ratios]
    for key, figures in values.items():
        middle, low, high, _ = median_interval([value for value in figures if value is not None])
        if key in ("speedup", "efficiency") and samples[0]["ranks"] == fewest:
            low = high = None  # it is 1 by definition
        row |= {key: middle, f"{key}_low": low, f"{key}_high": high}
    return {name: row[name] for name in FIELDS}


def median_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the median, the ends of a confidence interval for it, and the interval's confidence. It needs no
    distribution: its ends are values, the innermost two that reach 95 %, or else the least and the greatest.

    Source: David & Nagaraja, Order statistics, 2003, section 7.1.
    """
    x, n = sorted(values), len(values)
    if n < 2:
        return (x[0] if x else None), None, None, None
    confidences = [1 - 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n for k in range(n // 2)]
    k = max((k for k, confidence in enumerate(confidences) if confidence >= CONFIDENCE), default=0)
    return median(x), x[k], x[n - 1 - k], confidences[k]
