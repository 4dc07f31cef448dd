"""What each row of a sweep is held to: messages to the links, mapped memory to the copies of a device."""

from ringtrain.bench.bound import bound_s
from ringtrain.bench.buffers import CPU, NO_WAY, Buffers
from ringtrain.bench.calibration import calibrate
from ringtrain.bench.copies import mapped_bound_s, measure_copies
from ringtrain.bench.trials import Trial

MAPPED_BY_DEVICES = ("ipc", "nccl")


class Bounds:
    """Collective to make: everything is calibrated here. ``tag``: of messages."""

    def __init__(self, buffers: Buffers, tag: int):
        self._buffers, self._ranks, self._nodes = buffers, buffers.transport.size, buffers.transport.nodes
        ways = buffers.ways_of("ring")
        self._links = {way: calibrate(buffers.by(way), tag + place, buffers) for place, way in enumerate(ways)}
        self.calibration = next(iter(self._links.values()))
        self._copies = None if buffers.device == CPU else measure_copies(buffers)

    def as_dict(self) -> dict:
        """For the header. ``calibration`` is that of the first way."""
        told = {"calibration": self.calibration.as_dict()}
        if self._copies is None:
            return told
        links = {way: found.as_dict() for way, found in self._links.items()}
        return told | {"copies": self._copies.as_dict(), "calibration_by_way": links}

    def bound_s(self, trial: Trial, nbytes: int, share: float) -> float:
        """``share``: of the buffer's bytes, what travels."""
        if self._copies is not None and trial.transport in MAPPED_BY_DEVICES:
            return mapped_bound_s(self._copies, self._ranks, nbytes)
        links = self._links.get(trial.way or NO_WAY, self.calibration)
        return bound_s(links, self._ranks, self._nodes, nbytes, share)
