"""The quorum rule: a server merges updates in rounds, and waits for K workers. It knows no messages and no arrays.

A round ends S seconds after K workers have pushed, or at once when all that are present have. Its workers pull the
weights; an update that comes later is of the next round, though it is from older weights:

    K = 2, S = 0    arrivals in time     1  0  |  2  1  |  0  2
                    rounds             (0, 1)  (1, 2)  (0, 2), each in the order of ranks

Where fewer than K are present, before a meeting, all of these make a round.

Source: Douillard et al., Decoupled DiLoCo for resilient distributed pre-training, 2026 (quorum, grace).
"""

import time
from collections.abc import Callable, Sequence

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.parts import parts_of
from ringtrain.exchange.servers.staleness import StalenessClock


class QuorumClock(StalenessClock):
    """Merges the updates of a round at once, in the order of ranks. ``now``: the time in seconds"""

    def __init__(self, workers: Sequence[int], quorum: int, grace_s: float, now: Callable[[], float] = time.monotonic):
        super().__init__(workers, None)
        self._quorum, self._grace_s, self._now = quorum, grace_s, now
        self._ends_at: float | None = None  # the end of a round that has its quorum

    def merge(self, present: int) -> list[int]:
        count = len(self._arrived)
        if count < max(1, min(self._quorum, present)):
            return []
        if self._ends_at is None:
            self._ends_at = self._now() + self._grace_s
        if count < present and self._now() < self._ends_at:
            return []
        merged, self._arrived, self._ends_at = sorted(self._arrived), [], None
        self._count(merged)
        return merged

    def late(self, clock: int) -> list[int]:
        return [worker for worker in self.clocks if worker not in self._arrived]


def clock_of(config: ExchangeConfig, workers: Sequence[int]) -> StalenessClock:
    """Return the clock of a configuration."""
    if config.quorum is None:
        return StalenessClock(workers, parts_of(config).apart)
    return QuorumClock(workers, config.quorum, config.grace_s)
