"""A model of each algorithm's time, fitted to measurements, and judged on sizes that were held out.

    t(n) = rounds · alpha + sent · n · beta + added · n · gamma

with separate rounds and bytes inside a node and between nodes, each with an alpha and a beta of its own
(:mod:`ringtrain.bench.model.work` counts them).

Times of one algorithm over sizes are a line, and give two figures: its start and its slope. They are split: constants
from the calibration (gamma, and on several nodes the links inside them) are taken as they are, but never more than the
whole figure; the rest is the alpha and beta of the slowest class of links. Lines are fitted by least squares of the
*relative* error, and neither figure is below zero.

One line cannot fit both caches and memory, nor a network that lets a first burst pass. So the sizes may fall into two
*regimes*, each with a line of its own, if these explain clearly more than one line does; the first size of the second
regime belongs to the model.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Annotated

import numpy as np

from ringtrain.allreduce.dtypes import TYPES
from ringtrain.bench.measure.links import BETWEEN, INSIDE, Calibration
from ringtrain.bench.measure.rows import REFUSED
from ringtrain.bench.model.work import AlgorithmWork, least_work, work_of
from ringtrain.collectives.catalogue import check_name, make_schedule
from ringtrain.collectives.inspect.cost import MOST_RANKS, Fabric
from ringtrain.collectives.topology import Topology
from ringtrain.errors import UsageError
from ringtrain.records import SOME, Rules

LEAST_SIZES = 4  # two to fit by, and two to judge by
LEAST_OF_REGIME = 3  # a line fits any two points
CLEARLY = 4.0  # so many times less squared error, or one line it is
SMALL = 1e-4  # mean squared relative error below which one line is right: 1 %


@dataclass(frozen=True, slots=True)
class Regime:
    """From ``first_bytes`` on, machine and network behave as ``fabric``."""

    first_bytes: float
    fabric: Fabric


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A fitted model."""

    work: AlgorithmWork  # the work of the algorithm
    regimes: Annotated[tuple[Regime, ...], Rules(lengths=SOME)]  # one, or two, by size

    def line(self, nbytes: float) -> tuple[float, float]:
        """Return (seconds at no bytes, seconds a byte) of the regime of ``nbytes``."""
        work, fabric = self.work, self.fabric(nbytes)
        start_s = work.rounds * fabric.local_alpha_s + work.rounds_between * fabric.alpha_s
        slope = work.sent * fabric.local_beta_s + work.sent_between * fabric.beta_s + work.added * fabric.gamma_s
        return start_s, slope

    def fabric(self, nbytes: float) -> Fabric:
        return next(regime.fabric for regime in reversed(self.regimes) if regime.first_bytes <= nbytes)

    def predict_s(self, nbytes: float) -> float:
        start_s, slope = self.line(nbytes)
        return start_s + slope * nbytes


Points = Sequence[tuple[int, float]]  # (bytes, seconds)


def fit(work: AlgorithmWork, points: Points, known: Fabric) -> FittedModel:
    """Return the model of ``points``; ``known``: the calibrated machine."""
    points = sorted(points)
    parts = _parts(points)
    starts = [0.0, *(float(np.sqrt(a[-1][0] * b[0][0])) for a, b in pairwise(parts))]
    return FittedModel(
        work, tuple(Regime(e, _shared_out(work, _line(part), known)) for e, part in zip(starts, parts, strict=True))
    )


def _parts(points: Points) -> list[Points]:
    """Return the points, or two groups of them if two lines explain clearly more than one."""
    single = _squares(points)
    splits = [(points[:i], points[i:]) for i in range(LEAST_OF_REGIME, len(points) - LEAST_OF_REGIME + 1)]
    best = min(splits, key=lambda split: sum(map(_squares, split)), default=None)
    if best is None or single < SMALL * len(points) or single < CLEARLY * sum(map(_squares, best)):
        return [points]
    return list(best)


def _squares(points: Points) -> float:
    """Return the sum of the squared relative errors of a line."""
    start_s, slope = _line(points)
    return sum(((start_s + slope * nbytes) / seconds - 1) ** 2 for nbytes, seconds in points)


def _line(points: Points) -> tuple[float, float]:
    """Return (a, b) of seconds = a + b · bytes, least squares of the relative error, neither below 0."""
    x, y = (np.array(column, np.float64) for column in zip(*points, strict=True))
    columns = np.stack([1 / y, x / y], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.ones(len(x)), rcond=None)
    if a >= 0 and b >= 0:
        return float(a), float(b)
    one = columns[:, 1 if a < 0 else 0]  # the other is 0
    best = float(one.sum() / (one @ one))
    return (0.0, best) if a < 0 else (best, 0.0)


def _shared_out(work: AlgorithmWork, line: tuple[float, float], known: Fabric) -> Fabric:
    """Return the constants that make this line of this work."""
    start_s, slope = line
    gamma_s, slope = _take(slope, work.added, known.gamma_s)
    if not work.rounds_between:
        alpha_s, beta_s = start_s / max(work.rounds, 1), slope / work.sent if work.sent else 0.0
        return replace(known, local_alpha_s=alpha_s, local_beta_s=beta_s, gamma_s=gamma_s)
    local_alpha_s, start_s = _take(start_s, work.rounds, known.local_alpha_s)
    local_beta_s, slope = _take(slope, work.sent, known.local_beta_s)
    alpha_s, beta_s = start_s / work.rounds_between, slope / work.sent_between
    return Fabric(alpha_s, beta_s, local_alpha_s, local_beta_s, gamma_s, known.o_s)


def _take(total: float, times: float, known: float) -> tuple[float, float]:
    """Return the contribution of one of ``times`` to the total, as known but at most all of it, and the rest."""
    each = min(known, total / times) if times else known
    return each, max(total - times * each, 0.0)


def hold_out(points: Points) -> tuple[list, list]:
    """Return (points to fit, points to judge): every second size is held out, never the smallest or the largest."""
    points = sorted(points)
    held_out = points[1:-1:2] if len(points) >= LEAST_SIZES else []
    return [point for point in points if point not in held_out], held_out


def judged(model: FittedModel, seen: Points, held_out: Points) -> dict:
    """Return the model, its relative errors at the fitted sizes, and those at the sizes held out."""
    residuals, errors = (
        [(nbytes, model.predict_s(nbytes) / seconds - 1) for nbytes, seconds in points] for points in (seen, held_out)
    )
    sizes = [abs(error) for _, error in errors]
    return {
        **asdict(model),
        "residuals": residuals,
        "held_out": errors,
        "median_error": float(np.median(sizes)) if sizes else None,
        "worst_error": max(sizes, default=None),
    }


GROUP = ("dtype", "wire_dtype", "op", "placement")


def fit_sweep(rows: Sequence[dict], calibration: Calibration, topology: Topology) -> list[dict]:
    """Return, for every type, wire, operation and placement, each algorithm's model. An algorithm with fewer than
    two sizes has no model, nor has a single rank, nor have more ranks than the step count allows.
    """
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in GROUP), []).append(row)
    if not 1 < topology.size <= MOST_RANKS:
        return []
    known = fabric_of(calibration)
    return [dict(zip(GROUP, key, strict=True)) | _fitted(group, known, topology) for key, group in groups.items()]


def fabric_of(calibration: Calibration) -> Fabric:
    """Return the calibration as the constants of a model; 0 for a missing class of links."""
    inside, between = (calibration.links.get(kind) for kind in (INSIDE, BETWEEN))
    return Fabric(
        alpha_s=between.alpha_s if between else 0.0,
        beta_s=1 / calibration.node_bytes_per_s if between else 0.0,
        local_alpha_s=inside.alpha_s if inside else 0.0,
        local_beta_s=1 / inside.busy_bytes_per_s if inside else 0.0,
        gamma_s=calibration.gamma_s_per_byte,
        o_s=0.0,
    )


def _fitted(rows: Sequence[dict], known: Fabric, topology: Topology) -> dict:
    measured: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["status"] != REFUSED:
            measured.setdefault(row["algorithm"], []).append((row["bytes"], row["median_s"]))
    points = {name: each for name, each in measured.items() if len(each) > 1}
    share = TYPES[rows[0]["wire_dtype"]].itemsize / TYPES[rows[0]["dtype"]].itemsize
    parts = {name: hold_out(each) for name, each in points.items()}
    models = {name: fit(work_by_name(name, topology, share), seen, known) for name, (seen, _) in parts.items()}
    return {"models": {name: judged(models[name], *part) for name, part in parts.items()}}


def work_by_name(algorithm: str, topology: Topology, wire: float = 1.0) -> AlgorithmWork:
    """Return the work of a schedule by its steps; of any other algorithm the least. ``wire``: fraction of the bytes
    that travels.
    """
    try:
        check_name(algorithm, wire != 1)
    except UsageError:
        return least_work(topology)
    work = work_of(make_schedule(algorithm, topology, rounded=wire != 1), topology)
    return replace(work, sent=work.sent * wire, sent_between=work.sent_between * wire)
