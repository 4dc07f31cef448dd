"""The times of a bucket's exchange, and the time in which it blocks the loop."""

from collections import deque
from dataclasses import dataclass
from statistics import median

KEPT = 1000  # iterations, the last ones


@dataclass(frozen=True, slots=True)
class BucketTraffic:
    """The cost of one bucket in an iteration on this rank: medians of the last iterations.

    what:      "gradients" or "weights"
    spans:     names of its first and its last span
    nbytes:    of its elements
    algorithm: of its reduction
    total_s:   from its start to its end, as this rank saw it
    exposed_s: the time in which it blocked the loop: starting, testing, adding, waiting
    """

    what: str
    spans: str
    nbytes: int
    algorithm: str
    total_s: float
    exposed_s: float


class BucketTimer:
    """Times one bucket. ``bytes_sent`` and ``exposed_s`` are totals; ``started``: the start of the last round, by the
    caller's clock."""

    def __init__(self):
        self.bytes_sent = 0
        self.exposed_s = 0.0
        self._total: deque[float] = deque(maxlen=KEPT)
        self._exposed: deque[float] = deque(maxlen=KEPT)
        self.started = self._blocked = 0.0

    def start(self, now: float, nbytes: int) -> None:
        self.started, self._blocked = now, 0.0
        self.bytes_sent += nbytes

    def add_exposed(self, seconds: float) -> None:
        self._blocked += seconds
        self.exposed_s += seconds

    def end(self, now: float) -> None:
        self._total.append(now - self.started)
        self._exposed.append(self._blocked)

    @property
    def total_s(self) -> float:
        """From start to end, the median of the last rounds; 0 without one."""
        return median(self._total) if self._total else 0.0

    @property
    def each_exposed_s(self) -> float:
        """Exposed in a round, the median of the last ones; 0 without one."""
        return median(self._exposed) if self._exposed else 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that one rank has sent through an exchange, and the seconds in which its loop was blocked on it; the
    bytes received, None if they are not counted; the cost of each bucket in an iteration."""

    bytes_sent: int
    exposed_s: float
    bytes_received: int | None = None
    buckets: tuple[BucketTraffic, ...] = ()
