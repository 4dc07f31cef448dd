"""Lower bounds for each row of a sweep, by the links for messages."""

import math
from dataclasses import asdict

from ringtrain.bench.measure.buffers import NO_WAY, Buffers, DeviceBuffers
from ringtrain.bench.measure.links import BETWEEN, INSIDE, Calibration, calibrate
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


class Bounds:
    """The bounds of a sweep. Collective to make: everything is calibrated here. ``tag``: of messages."""

    def __init__(self, buffers: Buffers, tag: int):
        self._ranks, self._nodes = buffers.transport.size, buffers.transport.nodes
        self._is_device = isinstance(buffers, DeviceBuffers)
        ways = buffers.ways_of("ring")
        self._links = {way: calibrate(buffers.by(way), tag + index, buffers) for index, way in enumerate(ways)}
        self.calibration = next(iter(self._links.values()))

    def as_dict(self) -> dict:
        """Return the header's entries. ``calibration`` is the first way's."""
        entries = {"calibration": asdict(self.calibration)}
        if not self._is_device:
            return entries
        links = {way: asdict(calibration) for way, calibration in self._links.items()}
        return entries | {"calibration_by_way": links}

    def bound_s(self, trial: PreparedTrial, nbytes: int, fraction: float) -> float | None:
        """Return the bound of a trial; None where devices map each other's memory. ``fraction``: of the buffer's
        bytes, those that travel."""
        if trial.transport in MAPPED_BY_DEVICES:
            return None
        links = self._links.get(trial.way or NO_WAY, self.calibration)
        return bound_s(links, self._ranks, self._nodes, nbytes, fraction)
