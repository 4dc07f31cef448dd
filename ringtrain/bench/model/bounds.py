"""Lower bounds for each row of a sweep: the links for messages, a device's copies for mapped memory."""

import math
from dataclasses import asdict

from ringtrain.bench.measure.buffers import NO_WAY, Buffers, DeviceBuffers
from ringtrain.bench.measure.links import BETWEEN, INSIDE, Calibration, Copies, calibrate, measure_copies
from ringtrain.bench.measure.trials import PreparedTrial

MAPPED_BY_DEVICES = ("ipc", "nccl")


def bound_s(calibration: Calibration, ranks: int, nodes: int, nbytes: int, wire: float = 1.0) -> float:
    """Return the lower bound; 0 for one rank, which has nothing to do. ``wire``: fraction of the buffer's bytes that
    travels.
    """
    if ranks == 1:
        return 0.0
    links = calibration.links
    rates = [links[INSIDE].busy_bytes_per_s] if INSIDE in links else []
    rates += [calibration.node_bytes_per_s] if BETWEEN in links else []
    times = [
        math.ceil(math.log2(ranks)) * min(link.alpha_s for link in links.values()),
        2 * (ranks - 1) / ranks * nbytes * wire / max(rates),
        (ranks - 1) / ranks * nbytes * calibration.gamma_s_per_byte,
    ]
    if BETWEEN in links:
        times.append(2 * (nodes - 1) / nodes * nbytes * wire / calibration.node_bytes_per_s)
    return max(times)


def mapped_bound_s(copies: Copies, ranks: int, nbytes: int) -> float:
    """Return a lower bound for an all-reduce in memory that devices map, by the bytes that its kernels move.

    Each rank's memory is read once and written once: the owner of each of its p slices of n/p bytes does both. A copy
    of n bytes does the same. 2(p-1)/p · n pass the rank's link in either direction.
    """
    times = [nbytes / copies.own_bytes_per_s]
    if copies.peer_bytes_per_s is not None:
        times.append(2 * (ranks - 1) / ranks * nbytes / copies.peer_bytes_per_s)
    return max(times) if ranks > 1 else 0.0


class Bounds:
    """The bounds of a sweep. Collective to make: everything is calibrated here. ``tag``: of messages."""

    def __init__(self, buffers: Buffers, tag: int):
        self._buffers, self._ranks, self._nodes = buffers, buffers.transport.size, buffers.transport.nodes
        ways = buffers.ways_of("ring")
        self._links = {way: calibrate(buffers.by(way), tag + index, buffers) for index, way in enumerate(ways)}
        self.calibration = next(iter(self._links.values()))
        self._copies = measure_copies(buffers) if isinstance(buffers, DeviceBuffers) else None

    def as_dict(self) -> dict:
        """Return the header's entries. ``calibration`` is the first way's."""
        entries = {"calibration": asdict(self.calibration)}
        if self._copies is None:
            return entries
        links = {way: asdict(calibration) for way, calibration in self._links.items()}
        return entries | {"copies": asdict(self._copies), "calibration_by_way": links}

    def bound_s(self, trial: PreparedTrial, nbytes: int, fraction: float) -> float:
        """Return the bound of a trial. ``fraction``: fraction of the buffer's bytes that travels."""
        if self._copies is not None and trial.transport in MAPPED_BY_DEVICES:
            return mapped_bound_s(self._copies, self._ranks, nbytes)
        links = self._links.get(trial.way or NO_WAY, self.calibration)
        return bound_s(links, self._ranks, self._nodes, nbytes, fraction)
