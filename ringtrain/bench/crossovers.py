"""Where one algorithm becomes faster than another: as their models say, and as was measured."""

from itertools import combinations, pairwise

from ringtrain.bench.fit import Model, Points

LARGEST = 1 << 50  # no buffer is longer


def crossovers(models: dict[str, Model], points: dict[str, Points]) -> list[dict]:
    """For every two algorithms, the sizes where the faster one changes: predicted by their models, and measured between
    neighbouring sizes."""
    return [
        {
            "algorithms": [a, b],
            "predicted_bytes": predicted_crossings(models[a], models[b]),
            "measured_bytes": measured_crossings(dict(points[a]), dict(points[b])),
        }
        for a, b in combinations(models, 2)
    ]


def predicted_crossings(a: Model, b: Model) -> list[float]:
    """Where the lines cross, and where a new regime changes the order at once."""
    edges = sorted({regime.first_bytes for model in (a, b) for regime in model.regimes})
    found = []
    for low, high in pairwise((*edges, LARGEST)):
        if low and _leads(a, b, edges[edges.index(low) - 1], low) != _leads(a, b, low, low):
            found.append(low)
        (start_a, slope_a), (start_b, slope_b) = a.line(low), b.line(low)
        at = (start_b - start_a) / (slope_a - slope_b) if slope_a != slope_b else 0
        if low < at < high:
            found.append(at)
    return found


def _leads(a: Model, b: Model, regime_bytes: float, nbytes: float) -> bool:
    """Whether a is faster at ``nbytes``, were it of the regimes of ``regime_bytes``."""
    (start_a, slope_a), (start_b, slope_b) = a.line(regime_bytes), b.line(regime_bytes)
    return start_a + slope_a * nbytes < start_b + slope_b * nbytes


def measured_crossings(a: dict[int, float], b: dict[int, float]) -> list[tuple[int, int]]:
    """The neighbouring sizes between which the faster one changes."""
    sizes = sorted(a.keys() & b.keys())
    return [(low, high) for low, high in pairwise(sizes) if (a[low] < b[low]) != (a[high] < b[high])]
