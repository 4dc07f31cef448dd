"""How long the exchange of a bucket takes, and how much of that holds the loop up."""

from collections import deque
from dataclasses import dataclass
from statistics import median

KEPT = 1000  # iterations, the last ones


@dataclass(frozen=True, slots=True)
class BucketTraffic:
    """What one bucket costs an iteration on this rank, the median of the last ones.

    what:      "gradients" or "weights"
    spans:     names of its first and its last
    nbytes:    of its elements
    algorithm: what exchanges it
    total_s:   from its start to its end, as this rank has seen it
    exposed_s: for how long the loop was held up on account of it: starting, looking, adding, waiting
    """

    what: str
    spans: str
    nbytes: int
    algorithm: str
    total_s: float
    exposed_s: float


class BucketTimer:
    """Of one bucket. ``exposed_s``: of all that was ever done; ``started``: when the last round was, by the caller's
    clock."""

    def __init__(self):
        self.exposed_s = 0.0
        self._total: deque[float] = deque(maxlen=KEPT)
        self._exposed: deque[float] = deque(maxlen=KEPT)
        self.started = self._held = 0.0

    def start(self, now: float) -> None:
        self.started, self._held = now, 0.0

    def hold(self, seconds: float) -> None:
        self._held += seconds
        self.exposed_s += seconds

    def end(self, now: float) -> None:
        self._total.append(now - self.started)
        self._exposed.append(self._held)

    @property
    def total_s(self) -> float:
        """From start to end, the median of the last rounds; 0 where there was none."""
        return median(self._total) if self._total else 0.0

    @property
    def each_exposed_s(self) -> float:
        """In a round, the median of the last ones; 0 where there was none."""
        return median(self._exposed) if self._exposed else 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank has sent through this exchange, and for how long its loop was blocked on it; what it has received,
    None where that is not counted; what each bucket costs an iteration."""

    bytes_sent: int
    exposed_s: float
    bytes_received: int | None = None
    buckets: tuple[BucketTraffic, ...] = ()
