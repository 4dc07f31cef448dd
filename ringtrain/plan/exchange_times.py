"""The time of an all-reduce, or of half of one, on any ranks and nodes, from a sweep of ``bench-allreduce --json``.

On the ranks and nodes of the sweep it is the measured time, on a line between the sizes that were measured. Elsewhere
it is the model that the sweep has fitted (:mod:`ringtrain.bench.model.fit`), with the rounds and bytes of the schedule
on those ranks. Nothing is fitted here.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ringtrain.bench.measure.rows import OK
from ringtrain.bench.model.calibration import BETWEEN
from ringtrain.bench.model.fit import FittedModel, model_of
from ringtrain.bench.model.work import AlgorithmWork, least_work, work_of
from ringtrain.bench.sweep.files import read_json
from ringtrain.collectives.catalogue import SCHEDULES, make_schedule
from ringtrain.collectives.schedule import ALL_REDUCE
from ringtrain.collectives.topology import Topology, even, topology_from_nodes
from ringtrain.errors import UsageError
from ringtrain.plan import texts

WITHIN_A_NODE = ("mapped", "stream")  # over memory that ranks share
MANY_NODES = 16  # from so many on the work of the first two, one in the middle and the last is counted: roots are there


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """One all-reduce: seconds in which a rank's core is busy with it, and seconds and rounds between nodes, for which
    it need not be.

    beside: seconds of computing that get done while messages travel that take a second alone
    core_s: seconds by which computing takes longer beside all the messages
    """

    busy_s: float
    between_s: float = 0.0
    rounds: int = 0
    beside: float = 1.0
    core_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.busy_s + self.between_s

    def scaled(self, factor: float) -> "ExchangeTime":
        return replace(self, busy_s=factor * self.busy_s, between_s=factor * self.between_s)


class ExchangeTimes:
    """The sweep. Raises UsageError for a file that is none."""

    def __init__(self, path: str):
        self._path, found = path, read_json(path)
        header = found["header"] if isinstance(found.get("header"), dict) else {}
        hosts = header.get("host_by_rank")
        if not hosts or not header.get("finished"):
            raise UsageError(f"{path} has no finished sweep of `ringtrain bench-allreduce --json`")
        names = list(dict.fromkeys(hosts))
        self.measured_on = topology_from_nodes([names.index(host) for host in hosts])
        self._points: dict[str, list[tuple[int, float]]] = {}
        for row in found["rows"]:
            alike = row["dtype"] == row["wire_dtype"] == "float32" and row["op"] == "sum" and row["placement"] == "in"
            if alike and row["status"] == OK and not row["algorithm"].startswith("auto"):
                self._points.setdefault(row["algorithm"], []).append((row["bytes"], row["median_s"]))
        if not self._points:
            raise UsageError(f"{path} has no float32 sums in place: measure them by `ringtrain bench-allreduce`")
        self._beside, self._core_s_per_byte = _beside_computing(path, header.get("calibration"))
        self._models = {
            name: model_of(model)
            for group in header["fits"]
            if (group["dtype"], group["wire_dtype"], group["op"], group["placement"])
            == ("float32", "float32", "sum", "in")
            for name, model in group["models"].items()
        }

    @property
    def algorithms(self) -> list[str]:
        return list(self._points)

    def suiting(self, topology: Topology) -> list[str]:
        """Return the measured algorithms that can be predicted there."""
        one_node = len(topology.nodes) == 1
        return [
            name
            for name in self._points
            if topology == self.measured_on
            or (name in self._models and (_is_schedule(name) or (name in WITHIN_A_NODE and one_node)))
        ]

    def time(self, algorithm: str, topology: Topology, nbytes: float, goal: str = ALL_REDUCE) -> ExchangeTime:
        """Return the time of an all-reduce of ``nbytes``, or of the half of the schedule that ``goal`` names."""
        if topology.size == 1 or not nbytes:
            return ExchangeTime(0.0)
        if algorithm not in self._points:
            raise UsageError(f"{algorithm} was not measured in {self._path}; it has {', '.join(self._points)}")
        if len(topology.nodes) > 1 and len(self.measured_on.nodes) == 1:
            raise UsageError(
                f"a plan of {len(topology.nodes)} nodes wants a sweep between nodes, and {self._path} is of one: "
                "measure it by `mpirun -np 2 --map-by node ringtrain bench-allreduce --json FILE`"
            )
        model = self._models.get(algorithm)
        if model is None:  # then it is planned on the ranks of the sweep alone
            return ExchangeTime(_between(self._points[algorithm], nbytes))
        predicted = self._split(model, work_on(algorithm, topology, goal), nbytes)
        if topology != self.measured_on:
            return predicted
        whole = self._split(model, work_on(algorithm, topology), nbytes).seconds
        return predicted.scaled(_between(self._points[algorithm], nbytes) / whole if whole else 0.0)

    def _split(self, model: FittedModel, work: AlgorithmWork, nbytes: float) -> ExchangeTime:
        """Return the time of this work on the machine of the model."""
        fabric = model.fabric(nbytes)
        moved = work.sent * fabric.local_beta_s + work.added * fabric.gamma_s
        busy = work.rounds * fabric.local_alpha_s + nbytes * moved
        between = work.rounds_between * fabric.alpha_s + nbytes * work.sent_between * fabric.beta_s
        core = self._core_s_per_byte * nbytes * work.rank_between
        return ExchangeTime(busy, between, work.rounds_between, self._beside, core)


def _beside_computing(path: str, calibration: object) -> tuple[float, float]:
    """Return ``beside`` and the seconds of the core for a byte, as the calibration has measured them; 1 and 0 where it
    has not: on one node, of a device, by an earlier version. Raises UsageError."""
    if not isinstance(calibration, dict) or not calibration.get("beside_s_per_byte"):
        return 1.0, 0.0
    core_s, beside_s = (_figure(path, calibration, name) for name in ("core_s_per_byte", "beside_s_per_byte"))
    links = calibration.get("links")
    between = links.get(BETWEEN) if isinstance(links, dict) else None
    rate = _figure(path, between if isinstance(between, dict) else {}, "busy_bytes_per_s")
    return max(beside_s - core_s, 0.0) * rate, core_s


def _figure(path: str, found: dict, name: str) -> float:
    value = found.get(name)
    if type(value) is not float or not 0 <= value < math.inf:
        raise UsageError(
            f"{path} is no sweep of `ringtrain bench-allreduce --json`: {texts.BAD_FIELD(name=name, value=value)}"
        )
    return value


@lru_cache(maxsize=1024)
def work_on(algorithm: str, topology: Topology, goal: str = ALL_REDUCE) -> AlgorithmWork:
    """Return the work of a schedule on these ranks, on many nodes those of some; the least where there is none."""
    if not _is_schedule(algorithm):
        return least_work(topology)
    last = len(topology.nodes) - 1
    some = sorted({0, 1, last // 2, last}) if last >= MANY_NODES else None
    return work_of(make_schedule(algorithm, topology, goal), topology, some)


def _is_schedule(name: str) -> bool:
    return name in SCHEDULES or name.startswith("hierarchical:")


def _between(points: list[tuple[int, float]], nbytes: float) -> float:
    """Return the seconds on the lines between measured sizes; above the largest in proportion."""
    sizes, seconds = zip(*sorted(points), strict=True)
    if nbytes > sizes[-1]:
        return seconds[-1] * nbytes / sizes[-1]
    return float(np.interp(nbytes, sizes, seconds))


def placed(ranks: int, per_node: int) -> Topology:
    """Return ``ranks`` on as few nodes of ``per_node`` as hold them."""
    return even(ranks, -(-ranks // per_node))
