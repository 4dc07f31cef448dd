"""The models of a whole sweep, made from its rows."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringtrain.allreduce.dtypes import TYPES
from ringtrain.bench.calibration import BETWEEN, INSIDE, Calibration
from ringtrain.bench.crossovers import crossovers
from ringtrain.bench.fit import fit, hold_out, judged
from ringtrain.bench.rows import REFUSED
from ringtrain.bench.work import Work, least_work, work_of
from ringtrain.collectives.catalogue import check_name, make_schedule
from ringtrain.collectives.cost import MOST_RANKS, Fabric
from ringtrain.collectives.topology import Topology
from ringtrain.errors import UsageError

GROUP = ("dtype", "wire_dtype", "op", "placement")


def fits(made: Sequence[dict], calibration: Calibration, topology: Topology) -> list[dict]:
    """For every type, wire, operation and placement: each algorithm's model, and where they cross. An algorithm of less
    than two sizes has none, nor has a single rank, nor have more ranks than steps are counted of."""
    groups: dict[tuple, list[dict]] = {}
    for row in made:
        groups.setdefault(tuple(row[name] for name in GROUP), []).append(row)
    if not 1 < topology.size <= MOST_RANKS:
        return []
    known = fabric_of(calibration)
    return [dict(zip(GROUP, key, strict=True)) | _fitted(own, known, topology) for key, own in groups.items()]


def fabric_of(calibration: Calibration) -> Fabric:
    """What was calibrated, as the constants of a model; 0 for a class of links that is not there."""
    inside, between = (calibration.links.get(kind) for kind in (INSIDE, BETWEEN))
    return Fabric(
        alpha_s=between.alpha_s if between else 0.0,
        beta_s=1 / calibration.node_bytes_per_s if between else 0.0,
        local_alpha_s=inside.alpha_s if inside else 0.0,
        local_beta_s=1 / inside.busy_bytes_per_s if inside else 0.0,
        gamma_s=calibration.gamma_s_per_byte,
        o_s=0.0,
    )


def _fitted(made: Sequence[dict], known: Fabric, topology: Topology) -> dict:
    points = {name: own for name, own in _points(made).items() if len(own) > 1}
    work = {name: work_by_name(name, topology, _share(made[0])) for name in points}
    models = {name: fit(work[name], hold_out(own)[0], known) for name, own in points.items()}
    return {
        "models": {name: judged(work[name], own, known) for name, own in points.items()},
        "crossovers": crossovers(models, points),
    }


def _points(made: Iterable[dict]) -> dict[str, list[tuple[int, float]]]:
    """(bytes, seconds) by algorithm."""
    points: dict[str, list] = {}
    for row in made:
        if row["status"] != REFUSED:
            points.setdefault(row["algorithm"], []).append((row["bytes"], row["median_s"]))
    return points


def _share(row: dict) -> float:
    """What part of a buffer's bytes its messages have."""
    return TYPES[row["wire_dtype"]].itemsize / TYPES[row["dtype"]].itemsize


def work_by_name(algorithm: str, topology: Topology, wire: float = 1.0) -> Work:
    """Of a schedule by its steps; of anything else the least. ``wire``: the part of the bytes that travels."""
    try:
        check_name(algorithm, wire != 1)
    except UsageError:
        return least_work(topology)
    work = work_of(make_schedule(algorithm, topology, rounded=wire != 1), topology)
    return replace(work, sent=work.sent * wire, sent_between=work.sent_between * wire)
