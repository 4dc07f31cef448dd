"""The times of a bucket's exchange, and the time in which it blocks the loop."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketTraffic:
    """The cost of one bucket in an iteration on this rank: means over all, so that they add up to the run's totals."""

    what: str  # "gradients" or "weights"
    spans: str  # names of its first and its last span
    nbytes: int  # of its elements
    algorithm: str  # of its reduction
    total_s: float  # from its start to its end, as this rank saw it
    exposed_s: float  # the time in which it blocked the loop: starting, testing, adding, waiting


class BucketTimer:
    """Times one bucket. ``bytes_sent`` and ``exposed_s`` are totals; ``started``: the start of the last round, by the
    caller's clock."""

    def __init__(self):
        self.bytes_sent = 0
        self.exposed_s = 0.0
        self.started = self._seconds = 0.0
        self._rounds = 0

    def start(self, now: float, nbytes: int) -> None:
        self.started = now
        self.bytes_sent += nbytes

    def add_exposed(self, seconds: float) -> None:
        self.exposed_s += seconds

    def end(self, now: float) -> None:
        self._seconds += now - self.started
        self._rounds += 1

    @property
    def total_s(self) -> float:
        """From start to end, the mean of all rounds; 0 without one."""
        return self._seconds / max(1, self._rounds)

    @property
    def each_exposed_s(self) -> float:
        """Exposed in a round, the mean of all; 0 without one."""
        return self.exposed_s / max(1, self._rounds)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that one rank has sent through an exchange, and the seconds in which its loop was blocked on it; the
    bytes received, None if they are not counted; the cost of each bucket in an iteration."""

    bytes_sent: int
    exposed_s: float
    bytes_received: int | None = None
    buckets: tuple[BucketTraffic, ...] = ()
