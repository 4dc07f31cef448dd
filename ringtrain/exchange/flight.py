"""Buckets under way: started in one order on all ranks as their gradients become final, and waited for in that order.

Nothing here knows what is done to a bucket: an all-reduce, or one of its halves.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence

from ringtrain.collectives.reduction import Reduction
from ringtrain.exchange.buckets import Bucket


class Flight:
    """buckets:    in the order in which they are started
    reductions: what is done to each
    deadline_s: how long to wait for others that make no progress, before StalledError

    ``bytes_sent`` by this rank; ``exposed_s``: how long the caller was held up by it. Both of all that was ever done.
    """

    def __init__(self, buckets: Sequence[Bucket], reductions: Sequence[Reduction], deadline_s: float):
        self.buckets, self.reductions, self._deadline_s = buckets, reductions, deadline_s
        self._home = {span.name: place for place, bucket in enumerate(buckets) for span in bucket.spans}
        self._flying: deque[Reduction] = deque()
        self.bytes_sent, self.exposed_s = 0, 0.0
        self._begin()

    def _begin(self) -> None:
        self._started = 0  # buckets; they start in order
        self._missing = [len(bucket.spans) for bucket in self.buckets]

    def ready(self, span) -> None:
        """This span is final on this rank: buckets of which all spans are, and all before them, start."""
        began = time.perf_counter()
        self._missing[self._home[span.name]] -= 1
        while self._started < len(self.buckets) and not self._missing[self._started]:
            self._start_next()
        self._test()
        self.exposed_s += time.perf_counter() - began

    def start_next(self) -> None:
        """The next bucket is final on this rank, announced or not."""
        began = time.perf_counter()
        self._start_next()
        self._test()
        self.exposed_s += time.perf_counter() - began

    def start(self) -> None:
        """All are final on this rank, announced or not."""
        while self._started < len(self.buckets):
            self.start_next()

    def test(self) -> None:
        """Let what is under way get on, without waiting."""
        began = time.perf_counter()
        self._test()
        self.exposed_s += time.perf_counter() - began

    def arrivals(self) -> Iterator[Bucket]:
        """Each bucket when it has arrived, in order; all are final on this rank. Once through, the next round may
        begin."""
        self.start()
        for bucket in self.buckets:
            self._arrive()
            yield bucket
        self._begin()

    def land(self) -> None:
        """Return when all have arrived, and nobody asks which was first."""
        for _ in self.arrivals():
            pass

    def _start_next(self) -> None:
        reduction = self.reductions[self._started]
        self._started += 1
        self.bytes_sent += reduction.bytes_sent or 0
        reduction.start()
        self._flying.append(reduction)

    def _test(self) -> None:
        for reduction in self._flying:
            reduction.test()

    def _arrive(self) -> None:
        """Wait for the oldest bucket in flight, and let the others go on meanwhile."""
        began = time.perf_counter()
        oldest = self._flying.popleft()
        self._test()
        oldest.wait(self._deadline_s)
        self.exposed_s += time.perf_counter() - began
