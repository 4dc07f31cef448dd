"""The time of an all-reduce, or of half of one, on any ranks and nodes, from a sweep of ``bench-allreduce --json``.

On the ranks and nodes of the sweep it is the measured time, on a line between the sizes that were measured. Elsewhere
it is the model that the sweep has fitted (:mod:`ringtrain.bench.model.fit`), with the rounds and bytes of the schedule
on those ranks. Nothing is fitted here.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Annotated

import numpy as np

from ringtrain.bench.measure.links import BETWEEN
from ringtrain.bench.measure.rows import OK
from ringtrain.bench.model.fit import FittedModel, Regime
from ringtrain.bench.model.work import AlgorithmWork, least_work, work_of
from ringtrain.bench.sweep.files import LARGEST_BYTES, SWEEP, SweepRow
from ringtrain.collectives.catalogue import SCHEDULES, make_schedule
from ringtrain.collectives.schedule import ALL_REDUCE
from ringtrain.collectives.topology import Topology, even, topology_from_nodes
from ringtrain.errors import UsageError
from ringtrain.records import Rules, Unfit, load

FLOAT32 = ("float32", "float32", "sum", "in")  # type, wire, operation and placement of a run's gradients
WITHIN_A_NODE = ("mapped", "stream")  # over memory that ranks share
PAYLOAD = 1448 / 1514  # of the bits of a link, those of messages: TCP in Ethernet's frames of 1,500 bytes
FASTER = 1.1  # times the sweep's link, which its figures may miss
SWEEP_BETWEEN = "measure it by `mpirun -np 2 --map-by node ringtrain bench-allreduce --json FILE`"
MANY_NODES = 16  # from so many on the work of the first two, one in the middle and the last is counted: roots are there


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """One all-reduce: seconds in which a rank's core is busy with it, and seconds and rounds between nodes, for which
    it need not be."""

    busy_s: float
    between_s: float = 0.0
    rounds: int = 0
    beside: float = 1.0  # seconds of computing that get done while messages travel that take a second alone
    core_s: float = 0.0  # seconds by which computing takes longer beside all the messages

    @property
    def seconds(self) -> float:
        return self.busy_s + self.between_s


@dataclass(frozen=True, slots=True)
class Fits:
    """The fitted models of one type, wire, operation and placement."""

    dtype: str
    wire_dtype: str
    op: str
    placement: str
    models: dict[str, FittedModel]


@dataclass(frozen=True, slots=True)
class FabricFile:
    """What a plan takes of a sweep. There is no calibration of ranks that compute beside messages on one node, of a
    device, or by an earlier version."""

    rows: tuple[SweepRow, ...]
    hosts: Annotated[tuple[str, ...], Rules(key="header.host_by_rank")] = ()
    finished: Annotated[bool, Rules(key="header.finished")] = False
    fits: Annotated[tuple[Fits, ...], Rules(key="header.fits")] = ()
    core_s_per_byte: Annotated[float, Rules(key="header.calibration.core_s_per_byte")] = 0.0
    beside_s_per_byte: Annotated[float, Rules(key="header.calibration.beside_s_per_byte")] = 0.0
    busy_bytes_per_s: Annotated[float | None, Rules(key=f"header.calibration.links.{BETWEEN}.busy_bytes_per_s")] = None
    pair_bytes_per_s: Annotated[float, Rules(key=f"header.calibration.links.{BETWEEN}.pair_bytes_per_s")] = 0.0

    def __post_init__(self) -> None:
        if self.beside_s_per_byte and self.busy_bytes_per_s is None:
            raise Unfit("is missing", path=f"header.calibration.links.{BETWEEN}.busy_bytes_per_s")

    def beside_computing(self) -> tuple[float, float]:
        """Return ``beside`` of an :class:`ExchangeTime`, and the seconds of the core for a byte."""
        if not self.beside_s_per_byte or self.busy_bytes_per_s is None:
            return 1.0, 0.0
        return max(self.beside_s_per_byte - self.core_s_per_byte, 0.0) * self.busy_bytes_per_s, self.core_s_per_byte


class ExchangeTimes:
    """The sweep. Raises UsageError for a file that is none."""

    def __init__(self, path: str):
        self._path, file = path, load(FabricFile, path, SWEEP, {"low": 0}, largest=LARGEST_BYTES)
        if not file.hosts or not file.finished:
            raise UsageError(f"{path} has no finished sweep of `ringtrain bench-allreduce --json`")
        names = list(dict.fromkeys(file.hosts))
        self.measured_on = topology_from_nodes([names.index(host) for host in file.hosts])
        self._points: dict[str, list[tuple[int, float]]] = {}
        for row in file.rows:
            fits = row.status == OK and _kind(row) == FLOAT32 and not row.algorithm.startswith("auto")
            if fits and row.median_s:
                self._points.setdefault(row.algorithm, []).append((row.bytes, row.median_s))
        if not self._points:
            raise UsageError(f"{path} has no float32 sums in place: measure them by `ringtrain bench-allreduce`")
        self._beside, self._core_s_per_byte = file.beside_computing()
        busy_bytes_per_s = (file.busy_bytes_per_s or 0.0) * max(self.measured_on.counts)
        self._node_bytes_per_s = max(file.pair_bytes_per_s, busy_bytes_per_s)
        self._points_hold = True  # for the link of a plan
        self._models = {
            name: model for group in file.fits if _kind(group) == FLOAT32 for name, model in group.models.items()
        }
        self.has_messages = any(map(_is_schedule, self._models))  # of one rank to another

    @property
    def algorithms(self) -> list[str]:
        return list(self._points)

    def at_rate(self, bits_per_s: float) -> "ExchangeTimes":
        """Return the times where a node's link carries so many bits a second in each direction, and all else is as the
        sweep has fitted it. Raises UsageError for a faster link than the sweep's."""
        bytes_per_s, scaled = PAYLOAD * bits_per_s / 8, copy(self)
        if bytes_per_s > FASTER * self._node_bytes_per_s:
            link, rate = (f"{each / 1e6:,.0f} Mbit/s" for each in (8 * self._node_bytes_per_s / PAYLOAD, bits_per_s))
            raise UsageError(
                f"{self._path} has a link of {link} between nodes; {rate} wants one as fast: {SWEEP_BETWEEN}"
            )

        def slowed(regime: Regime) -> Regime:  # as many times the link's own seconds a byte as there
            beta_s = regime.fabric.beta_s * self._node_bytes_per_s / bytes_per_s
            return replace(regime, fabric=replace(regime.fabric, beta_s=beta_s))

        beside_s = max(self._beside / self._node_bytes_per_s, 1 / bytes_per_s - self._core_s_per_byte)
        scaled._beside, scaled._node_bytes_per_s, scaled._points_hold = beside_s * bytes_per_s, bytes_per_s, False
        scaled._models = {
            name: replace(model, regimes=tuple(map(slowed, model.regimes))) for name, model in self._models.items()
        }
        return scaled

    def message(self, topology: Topology, nbytes: float) -> ExchangeTime:
        """Return the time of a message of each rank to one other, and one from there, between nodes if there are
        several: at the median of the latencies and rates that the sweep has fitted to its schedules."""
        self._check(topology)
        fabrics = [model.fabric(nbytes) for name, model in self._models.items() if _is_schedule(name)]
        if not fabrics:
            raise UsageError(f"{self._path} has no schedule of messages, such as ring, at two sizes or more")
        if len(topology.nodes) == 1:
            return ExchangeTime(median(each.local_alpha_s + nbytes * each.local_beta_s for each in fabrics))
        passed = nbytes * max(topology.counts)
        between = median(each.alpha_s + passed * each.beta_s for each in fabrics)
        return ExchangeTime(0.0, between, 1, self._beside, self._core_s_per_byte * nbytes)

    def suiting(self, topology: Topology) -> list[str]:
        """Return the measured algorithms that can be predicted there."""
        one_node = len(topology.nodes) == 1
        return [
            name
            for name in self._points
            if (topology == self.measured_on and self._points_hold)
            or (name in self._models and (_is_schedule(name) or (name in WITHIN_A_NODE and one_node)))
        ]

    def time(self, algorithm: str, topology: Topology, nbytes: float, goal: str = ALL_REDUCE) -> ExchangeTime:
        """Return the time of an all-reduce of ``nbytes``, or of the half of the schedule that ``goal`` names."""
        if topology.size == 1 or not nbytes:
            return ExchangeTime(0.0)
        if algorithm not in self._points:
            raise UsageError(f"{algorithm} was not measured in {self._path}; it has {', '.join(self._points)}")
        self._check(topology)
        model = self._models.get(algorithm)
        if model is None:  # then it is planned on the ranks of the sweep alone
            return ExchangeTime(_between(self._points[algorithm], nbytes))
        predicted = self._split(model, work_on(algorithm, topology, goal), nbytes)
        if topology != self.measured_on or not self._points_hold:
            return predicted
        whole = self._split(model, work_on(algorithm, topology), nbytes).seconds
        factor = _between(self._points[algorithm], nbytes) / whole if whole else 0.0
        return replace(predicted, busy_s=factor * predicted.busy_s, between_s=factor * predicted.between_s)

    def _check(self, topology: Topology) -> None:
        if len(topology.nodes) > 1 and len(self.measured_on.nodes) == 1:
            raise UsageError(
                f"a plan of {len(topology.nodes)} nodes wants a sweep between nodes, and {self._path} is of one: give "
                f"--per-node {topology.size} for all ranks on one, or {SWEEP_BETWEEN}"
            )

    def _split(self, model: FittedModel, work: AlgorithmWork, nbytes: float) -> ExchangeTime:
        """Return the time of this work on the machine of the model."""
        fabric = model.fabric(nbytes)
        moved = work.sent * fabric.local_beta_s + work.added * fabric.gamma_s
        busy = work.rounds * fabric.local_alpha_s + nbytes * moved
        between = work.rounds_between * fabric.alpha_s + nbytes * work.sent_between * fabric.beta_s
        core = self._core_s_per_byte * nbytes * work.rank_between
        return ExchangeTime(busy, between, work.rounds_between, self._beside, core)


def _kind(measured: SweepRow | Fits) -> tuple[str, ...]:
    return measured.dtype, measured.wire_dtype or measured.dtype, measured.op, measured.placement


@lru_cache(maxsize=1024)
def work_on(algorithm: str, topology: Topology, goal: str = ALL_REDUCE) -> AlgorithmWork:
    """Return the work of a schedule on these ranks, on many nodes the work of some; the least where there is none."""
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
