"""Buckets under way: started in one order on all ranks as their gradients become final, and waited for in one order.

Nothing here knows what is done to a bucket: an all-reduce, or one of its halves.

A bucket is announced when the operations that make it final were issued, and starts when a device has done them: at
the next look after that. On a host they are done, and it starts at once. Ranks agree on the order in which they
announce, whenever each starts; a collective call of the MPI cannot come later than others: it waits for the device.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.exchange import texts
from ringtrain.exchange.buckets.streams import ON_HOST, StreamPair
from ringtrain.exchange.buckets.timings import BucketTimer, BucketTraffic, Traffic
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.waiting import wait_for


class Reducer:
    """buckets:    from the arena's end to its start
    reductions: what is done to each
    deadline_s: how long to wait for others that make no progress, before StalledError
    early:      whether buckets start as they are announced; else all start when the first is asked for
    orders:     of the operations that make buckets final, and of those of the reductions
    order:      places of buckets as they start, the same on all ranks; None: as in ``buckets``
    clock:      seconds

    ``home``: place of each span's bucket. ``bytes_sent`` by this rank; ``exposed_s``: how long the caller was held up
    by it. Both of all that was ever done.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        reductions: Sequence[Reduction],
        deadline_s: float,
        early: bool = True,
        orders: StreamPair = ON_HOST,
        order: Sequence[int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.buckets, self.reductions, self._deadline_s = buckets, reductions, deadline_s
        self._early, self._orders, self._clock = early, orders, clock
        self.home = {span.name: place for place, bucket in enumerate(buckets) for span in bucket.spans}
        self.order = range(len(buckets)) if order is None else order
        self.meters = [BucketTimer() for _ in buckets]
        self._tell: Callable | None = None
        self._due: deque[tuple] = deque()  # (mark, place): announced, to start when the mark is done, in this order
        self._flying: list[int] = []
        self.bytes_sent = 0
        self._begin()

    def _begin(self) -> None:
        self._started, self._left = 0, len(self.buckets)
        self._missing = [len(bucket.spans) for bucket in self.buckets]

    @property
    def exposed_s(self) -> float:
        return sum(meter.exposed_s for meter in self.meters)

    @property
    def cuts(self) -> frozenset[str]:
        """Names of the spans that are last in backward of those in their bucket, and first in forward; of none, where
        nothing starts before all are ready."""
        return frozenset(bucket.spans[0].name for bucket in self.buckets) if self._early else frozenset()

    def watch(self, tell: Callable[[str, int, float, float], None] | None) -> None:
        """``tell(verb, place, start, stop)`` from now on, of a bucket: that it was under way until it landed (land),
        and what held the loop up for it: start, test, wait. None: nobody is told."""
        self._tell = tell

    def grad_ready(self, span) -> None:
        """This span is final on this rank: buckets of which all spans are, and all before them in the order, start."""
        self._missing[self.home[span.name]] -= 1
        if not self._early:
            return
        while self._started < len(self.order) and not self._missing[self.order[self._started]]:
            self._announce_next()
        self.test()

    def start_next(self) -> None:
        """The next bucket is final on this rank, announced or not."""
        self._announce_next()
        self.test()

    def start(self) -> None:
        """All are final on this rank, announced or not."""
        while self._started < len(self.buckets):
            self.start_next()

    def test(self) -> None:
        """Let what is under way get on, without waiting."""
        self._get_on(self._held)

    def arrivals(self) -> Iterator[Bucket]:
        """Each bucket when it has arrived, in the order in which they started; all are final on this rank. Once
        through, the next round may begin."""
        self.start()
        for place in self.order:
            yield self.arrive(place)

    def arrive(self, place: int) -> Bucket:
        """The bucket, when it has arrived; the others go on meanwhile. All have started, all ranks ask for them in the
        same order, and once for each; then the next round may begin."""
        self.test()
        if self._due:
            self._until_started(place)
        if place in self._flying:
            self._held(place, self.reductions[place].wait, self._deadline_s)
            self._land(place)
        self._orders.join()
        self._left -= 1
        if not self._left:
            self._begin()
        return self.buckets[place]

    def wait_all(self) -> None:
        """Return when all have arrived, and nobody asks which was first."""
        for _ in self.arrivals():
            pass

    def _announce_next(self) -> None:
        place, mark = self.order[self._started], self._orders.final()
        self._started += 1
        if self.reductions[place].blocks:
            mark.wait()
            self._start(place, self._held)
        elif self._due or not mark.done():
            self.reductions[place].announce()
            self._due.append((mark, place))
        else:
            self._start(place, self._held)

    def _start(self, place: int, call: Callable) -> None:
        reduction = self.reductions[place]
        self.bytes_sent += reduction.bytes_sent or 0
        self.meters[place].start(self._clock())
        self._flying.append(place)
        call(place, reduction.start)

    def _get_on(self, call: Callable) -> None:
        while self._due and self._due[0][0].done():
            self._start(self._due.popleft()[1], call)
        for place in tuple(self._flying):
            if call(place, self.reductions[place].test):
                self._land(place)

    def _until_started(self, place: int) -> None:
        """The device has still to make buckets final: nobody is held up by their exchange before it has. Return when
        all have started, or this one has arrived."""

        def enough() -> bool:
            self._get_on(_unheld)
            return not self._due or not (place in self._flying or any(place == due for _, due in self._due))

        wait_for(enough, self._deadline_s, self._say_due, lambda: len(self._due))

    def _say_due(self) -> str:
        return texts.AWAITED_BUCKET(bucket=self.buckets[self._due[0][1]].name)

    def _land(self, place: int) -> None:
        self._flying.remove(place)
        meter, ended = self.meters[place], self._clock()
        meter.end(ended)
        if self._tell:
            self._tell("land", place, meter.started, ended)

    def _held(self, place: int, call: Callable, *arguments):
        """The value of the call, which is on account of this bucket."""
        began = self._clock()
        value = call(*arguments)
        ended = self._clock()
        self.meters[place].hold(ended - began)
        if self._tell:
            self._tell(call.__name__, place, began, ended)
        return value

    def close(self) -> None:
        """Release the prepared reductions."""
        self.reductions = ()

    def traffic(self, what: str) -> tuple[BucketTraffic, ...]:
        """Of each bucket; ``what`` it carries."""
        return tuple(
            BucketTraffic(
                what=what,
                spans=bucket.name,
                nbytes=bucket.nbytes,
                algorithm=reduction.algorithm,
                total_s=meter.total_s,
                exposed_s=meter.each_exposed_s,
            )
            for bucket, reduction, meter in zip(self.buckets, self.reductions, self.meters, strict=True)
        )


def _unheld(place: int, call: Callable):
    return call()


def traffic_of(sums: Reducer, weights: Reducer) -> Traffic:
    """Of gradients on their way to whoever sums, and of weights on their way back."""
    return Traffic(
        sums.bytes_sent + weights.bytes_sent,
        sums.exposed_s + weights.exposed_s,
        buckets=sums.traffic("gradients") + weights.traffic("weights"),
    )


class InArrivalOrder:
    """The arrivals of ``flight``, drawn on demand: of its buckets the one that is needed first is in front."""

    def __init__(self, flight: Reducer):
        self._flight = flight
        self._arrivals: Iterator[Bucket] | None = None
        self._landed = len(flight.buckets)  # buckets, of the round that is under way

    def start(self) -> None:
        """A round begins; what is left of the last one lands first."""
        self.wait_all()
        self._flight.start()
        self._arrivals, self._landed = self._flight.arrivals(), 0

    def before_read(self, span) -> None:
        """Return when the bucket of this span has arrived."""
        if self._arrivals is None:
            return
        self._flight.test()
        while self._landed <= self._flight.home[span.name]:
            next(self._arrivals)
            self._landed += 1

    def wait_all(self) -> None:
        """Return when all have arrived."""
        for _ in self._arrivals or ():
            pass
        self._arrivals, self._landed = None, len(self._flight.buckets)


def take_mean(ops, array, share: float, sums: Reducer, buffer) -> None:
    """``array`` becomes the mean over ranks, in which this rank weighs ``share``. ``sums`` are those of ``buffer``, as
    long as the array. Collective."""
    ops.copy(array, buffer)
    ops.scale(buffer, share)
    sums.wait_all()
    ops.copy(buffer, array)
