"""An alpha-beta-gamma model of each algorithm, fitted to what was measured, and judged on sizes that it did not see.

    t(n) = rounds · alpha + sent · n · beta + added · n · gamma

What a schedule does is counted from its steps: ``rounds`` and, in multiples of the buffer, what the busiest rank moves
and adds. The MPI, like others that are no schedule, does not say what it does; it is taken to do the least possible.

In every all-reduce additions go along with bytes, so times cannot tell beta from gamma. Gamma is therefore the
calibrated one, but never more than explains all of the slope; alpha and beta are fitted, by least squares of the
*relative* error, neither below zero.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise

import numpy as np

from ringtrain.collectives.messages import all_steps, is_local
from ringtrain.collectives.schedule import Schedule

LEAST_SIZES = 4  # two to fit by, and two to judge by


@dataclass(frozen=True, slots=True)
class Work:
    """rounds:      steps of the rank that has most
    sent, added: multiples of the buffer: what the busiest rank moves, the larger direction of every step, and adds
    """

    rounds: int
    sent: float
    added: float


@dataclass(frozen=True, slots=True)
class Model:
    work: Work
    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float

    @property
    def slope(self) -> float:
        """Seconds a byte of the buffer."""
        return self.work.sent * self.beta_s_per_byte + self.work.added * self.gamma_s_per_byte

    def predict_s(self, nbytes: float) -> float:
        return self.work.rounds * self.alpha_s + self.slope * nbytes

    def as_dict(self) -> dict:
        return asdict(self)


def work_of(schedule: Schedule) -> Work:
    """Moves within a rank are no messages, and steps of nothing else no rounds; what they add is added."""
    steps = all_steps(schedule)
    rounds = [sum(not is_local(step, rank) for step in own) for rank, own in enumerate(steps)]
    moved = [
        sum(max(_chunks(m for m in moves if m.peer != rank) for moves in (step.sends, step.recvs)) for step in own)
        for rank, own in enumerate(steps)
    ]
    added = [sum(_chunks(m for m in step.recvs if m.add) for step in own) for own in steps]
    return Work(max(rounds), max(moved) / schedule.chunks, max(added) / schedule.chunks)


def _chunks(moves: Iterable) -> int:
    return sum(move.stop - move.start for move in moves)


def least_work(ranks: int) -> Work:
    """What no all-reduce of ``ranks`` ranks does without."""
    return Work(max(ranks - 1, 1).bit_length(), 2 * (ranks - 1) / ranks, (ranks - 1) / ranks)


def fit(work: Work, points: Sequence[tuple[int, float]], gamma_s_per_byte: float) -> Model:
    """The model of (bytes, seconds) points."""
    nbytes, times = (np.array(column, np.float64) for column in zip(*points, strict=True))
    intercept, slope = _line(nbytes, times)
    gamma = min(gamma_s_per_byte, slope / work.added) if work.added else 0.0
    beta = (slope - work.added * gamma) / work.sent if work.sent else 0.0
    return Model(work, intercept / max(work.rounds, 1), beta, gamma)


def _line(x, y) -> tuple[float, float]:
    """(a, b) of y = a + b·x, least squares of the relative error, neither below 0."""
    columns = np.stack([1 / y, x / y], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.ones(len(x)), rcond=None)
    if a >= 0 and b >= 0:
        return float(a), float(b)
    one = columns[:, 1 if a < 0 else 0]  # the other is 0
    best = float(one.sum() / (one @ one))
    return (0.0, best) if a < 0 else (best, 0.0)


def hold_out(points: Sequence[tuple[int, float]]) -> tuple[list, list]:
    """(points to fit by, points to judge by): every second size, never the smallest or the largest."""
    points = sorted(points)
    held = points[1:-1:2] if len(points) >= LEAST_SIZES else []
    return [point for point in points if point not in held], held


def judged(work: Work, points: Sequence[tuple[int, float]], gamma_s_per_byte: float) -> dict:
    """The model, its residuals at the sizes it was fitted to, and its relative errors at those held out."""
    seen, held = hold_out(points)
    model = fit(work, seen, gamma_s_per_byte)
    errors = [abs(error) for _, error in _errors(model, held)]
    return {
        **model.as_dict(),
        "residuals": _errors(model, seen),
        "held_out": _errors(model, held),
        "median_error": float(np.median(errors)) if errors else None,
        "worst_error": max(errors, default=None),
    }


def _errors(model: Model, points) -> list[tuple[int, float]]:
    """(bytes, predicted/measured - 1)"""
    return [(nbytes, model.predict_s(nbytes) / seconds - 1) for nbytes, seconds in points]


def crossovers(models: dict[str, Model], points: dict[str, Sequence[tuple[int, float]]]) -> list[dict]:
    """For every two algorithms, the sizes where one becomes faster than the other: predicted by their lines, and
    measured between neighbouring sizes."""
    return [
        {
            "algorithms": [a, b],
            "predicted_bytes": crossing(models[a], models[b]),
            "measured_bytes": measured_crossings(dict(points[a]), dict(points[b])),
        }
        for a, b in combinations(models, 2)
    ]


def crossing(a: Model, b: Model) -> float | None:
    """Where the lines cross; None where one is always below."""
    steeper = a.slope - b.slope
    later = b.predict_s(0) - a.predict_s(0)
    return later / steeper if steeper and later / steeper > 0 else None


def measured_crossings(a: dict[int, float], b: dict[int, float]) -> list[tuple[int, int]]:
    """The neighbouring sizes between which the faster one changes."""
    sizes = sorted(a.keys() & b.keys())
    return [(low, high) for low, high in pairwise(sizes) if (a[low] < b[low]) != (a[high] < b[high])]
