"""Who may go on: the rules of bounded staleness, without any message or array.

A worker's clock counts the updates that it has given. It may take weights and go on while it is at most K updates ahead
of the slowest; else it is held until the slowest have caught up:

    K = 1     worker 0   1 2 3 ·           clocks 3, 2, 1: worker 0 is held, since 3 - 1 > 1
              worker 1   1 2
              worker 2   1

Whoever goes on at clock c takes weights that hold every update up to clock c - K - 1, and all of its own. The slowest
is never held, so that somebody can always go on. Without a bound nobody is ever held.

Source: Ho et al., More effective distributed ML via a stale synchronous parallel parameter server, NIPS 2013.
"""

from collections import Counter
from collections.abc import Sequence


class StalenessClock:
    """workers:   their ranks
    staleness: K; None for no bound

    ``clocks``: updates of each worker. ``version``: updates of all. ``clock_lags`` and ``version_lags``: how often a
    worker went on so far ahead of the slowest, and how often so many updates of others lay between what it took and
    what it gave.
    """

    def __init__(self, workers: Sequence[int], staleness: int | None):
        self.staleness = staleness
        self.clocks = dict.fromkeys(workers, 0)
        self.clock_lags: Counter[int] = Counter()
        self.version_lags: Counter[int] = Counter()
        self._taken = dict.fromkeys(workers, 0)  # the version that each has taken last
        self._held: list[int] = []  # in the order in which they came

    @property
    def version(self) -> int:
        return sum(self.clocks.values())

    @property
    def slowest(self) -> int:
        return min(self.clocks.values())

    def arrive(self, worker: int) -> None:
        """An update of the worker has been applied, and it wants to go on."""
        if worker in self._held:
            raise ValueError(f"worker {worker} is held at clock {self.clocks[worker]}, and gave another update")
        self.version_lags[self.version - self._taken[worker]] += 1
        self.clocks[worker] += 1
        self._held.append(worker)

    def release(self) -> list[int]:
        """Those who may go on now, and take the weights as they are."""
        free = [worker for worker in self._held if self.allows(self.clocks[worker])]
        self._held = [worker for worker in self._held if worker not in free]
        for worker in free:
            self._taken[worker] = self.version
            self.clock_lags[self.clocks[worker] - self.slowest] += 1
        return free

    def allows(self, clock: int) -> bool:
        """Whether somebody at this clock may go on."""
        return self.staleness is None or clock - self.slowest <= self.staleness

    def late(self, clock: int) -> list[int]:
        """For whom somebody at this clock is held."""
        return [worker for worker, own in self.clocks.items() if clock - own > (self.staleness or 0)]
