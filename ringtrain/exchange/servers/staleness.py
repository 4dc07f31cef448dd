"""The staleness rule: how far a worker may be ahead of the slowest. It knows no messages and no arrays.

A worker's clock counts the updates that it has pushed. The worker pulls weights and continues while it is at most K
updates ahead of the slowest; else a server holds it until the slowest has caught up:

    K = 1     worker 0   1 2 3 ·           clocks 3, 2, 1: worker 0 is held, since 3 - 1 > 1
              worker 1   1 2
              worker 2   1

At clock c a worker pulls weights that hold every update up to clock c - K - 1, and all of its own. The slowest worker
is never held, so one worker can always continue. Without a bound no worker is ever held. K = 0 is synchronous.

Source: Ho et al., More effective distributed ML via a stale synchronous parallel parameter server, NIPS 2013.
"""

from collections import Counter
from collections.abc import Sequence

from ringtrain.exchange.base import Lag


class StalenessClock:
    """Counts the updates of workers, and holds those that are too far ahead.

    workers:   their ranks
    staleness: K; None for no bound

    ``clocks``: the updates of each worker. ``version``: the updates of all.
    """

    def __init__(self, workers: Sequence[int], staleness: int | None):
        self.staleness = staleness
        self.clocks = dict.fromkeys(workers, 0)
        self.clock_lags: Counter[int] = Counter()
        self.version_lags: Counter[int] = Counter()
        self._pulled = dict.fromkeys(workers, 0)  # the version of each worker's last pull
        self._arrived: list[int] = []  # workers whose update is not merged
        self._waiting: list[int] = []  # in the order of their arrival

    @property
    def version(self) -> int:
        return sum(self.clocks.values())

    @property
    def slowest(self) -> int:
        return min(self.clocks.values())

    def arrive(self, worker: int) -> None:
        """Take an update of the worker, which waits to pull."""
        if worker in (*self._arrived, *self._waiting):
            raise ValueError(f"worker {worker} is held at clock {self.clocks[worker]}, and gave another update")
        self._arrived.append(worker)

    def merge(self, present: int) -> list[int]:
        """Return the workers whose updates are merged now, in this order, and count them. ``present``: the number of
        workers that may push before the next meeting, or have."""
        arrived, self._arrived = self._arrived, []
        for worker in arrived:
            self._count([worker])
        return arrived

    def _count(self, workers: Sequence[int]) -> None:
        """Count updates that are merged at once."""
        version = self.version
        for worker in workers:
            self.version_lags[version - self._pulled[worker]] += 1
            self.clocks[worker] += 1
        self._waiting += workers

    def release(self) -> list[int]:
        """Return the workers that may continue, and pull the weights of this moment."""
        free = [worker for worker in self._waiting if self.allows(self.clocks[worker])]
        self._waiting = [worker for worker in self._waiting if worker not in free]
        for worker in free:
            self._pulled[worker] = self.version
            self.clock_lags[self.clocks[worker] - self.slowest] += 1
        return free

    def allows(self, clock: int) -> bool:
        """Whether a worker at this clock may continue."""
        return self.staleness is None or clock - self.slowest <= self.staleness

    def late(self, clock: int) -> list[int]:
        """Return the workers that a worker at this clock waits for."""
        return [worker for worker, updates in self.clocks.items() if clock - updates > (self.staleness or 0)]

    def lag(self) -> Lag:
        return Lag(dict(self.clock_lags), dict(self.version_lags), dict(self.clocks))
