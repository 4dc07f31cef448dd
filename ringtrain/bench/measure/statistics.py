"""Statistics of a row's samples: robust figures, and the confidence of a ratio."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000
CONFIDENCE = 0.95


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
