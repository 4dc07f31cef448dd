"""The models of a whole sweep, made from its rows."""

from collections.abc import Iterable, Sequence

from ringtrain.bench import fit
from ringtrain.bench.calibration import Calibration
from ringtrain.bench.rows import REFUSED
from ringtrain.collectives.catalogue import SCHEDULES, make_schedule

GROUP = ("dtype", "wire_dtype", "op", "placement")


def fits(made: Sequence[dict], calibration: Calibration, ranks: int) -> list[dict]:
    """For every type, wire, operation and placement: each algorithm's model, and where they cross. An algorithm of less
    than two sizes has none, nor has a single rank, which exchanges nothing."""
    groups: dict[tuple, list[dict]] = {}
    for row in made:
        groups.setdefault(tuple(row[name] for name in GROUP), []).append(row)
    if ranks == 1:
        return []
    gamma = calibration.gamma_s_per_byte
    return [dict(zip(GROUP, key, strict=True)) | _fitted(own, gamma, ranks) for key, own in groups.items()]


def _fitted(made: Iterable[dict], gamma_s_per_byte: float, ranks: int) -> dict:
    points = {name: own for name, own in _points(made).items() if len(own) > 1}
    work = {name: _work(name, ranks) for name in points}
    models = {name: fit.fit(work[name], fit.hold_out(own)[0], gamma_s_per_byte) for name, own in points.items()}
    return {
        "models": {name: fit.judged(work[name], own, gamma_s_per_byte) for name, own in points.items()},
        "crossovers": fit.crossovers(models, points),
    }


def _points(made: Iterable[dict]) -> dict[str, list[tuple[int, float]]]:
    """(bytes, seconds) by algorithm."""
    points: dict[str, list] = {}
    for row in made:
        if row["status"] != REFUSED:
            points.setdefault(row["algorithm"], []).append((row["bytes"], row["median_s"]))
    return points


def _work(algorithm: str, ranks: int) -> fit.Work:
    return fit.work_of(make_schedule(algorithm, ranks)) if algorithm in SCHEDULES else fit.least_work(ranks)
