"""Reductions of buckets, started in one order on all ranks as gradients become final.

A reduction is an all-reduce, or one of its halves. A bucket is announced when the operations that compute its gradients
have been issued to the device. Its reduction starts at the first test after the device has done them; on a CPU at once.
All ranks announce buckets in the same order; the starts of messages may differ in order. A reduction that is one
collective call of the MPI must start in that order too, so its announcement waits for the device.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.exchange.buckets.streams import StreamPair
from ringtrain.exchange.buckets.timings import BucketTimer, BucketTraffic, Traffic
from ringtrain.memory.buckets import Bucket
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Mark
from ringtrain.transport.waiting import wait_for

Trace = Callable[[str, int, float, float], None]


class Reducer:
    """Starts the reductions of buckets in one order, tests them, and waits for them.

    buckets:    from the arena's end to its start
    reductions: one for each bucket
    deadline_s: how long to wait for ranks that make no progress, before StalledError
    streams:    the device's streams, of the network and of the reductions
    early:      whether a bucket starts when its gradients are final; else all start after backward
    order:      indices into ``buckets`` in the order of their starts, the same on all ranks; None: ascending
    clock:      returns seconds

    ``index_of``: name of a span → index of its bucket. ``bytes_sent`` by this rank and ``exposed_s``, seconds in which
    the loop was blocked, are totals. A round is one reduction of every bucket.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        reductions: Sequence[Reduction],
        deadline_s: float,
        streams: StreamPair,
        early: bool = True,
        order: Sequence[int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.buckets, self.reductions, self._deadline_s = buckets, reductions, deadline_s
        self._early, self._streams, self._clock = early, streams, clock
        self.index_of = {span.name: index for index, bucket in enumerate(buckets) for span in bucket.spans}
        self.order = range(len(buckets)) if order is None else order
        self.timers = [BucketTimer() for _ in buckets]
        self._trace: Trace | None = None
        self._counts = True  # whether bytes and seconds are those of training
        self._announced: deque[tuple[Mark, int]] = deque()  # (mark, index), to start when the mark is done
        self._in_flight: list[int] = []
        self._unreleased: set[int] = set()
        self._under_way: set[int] = set()  # announced, and not complete
        self._begin_round()

    def _begin_round(self) -> None:
        self._next, self._left = 0, len(self.buckets)  # buckets announced; buckets that have not arrived
        self._missing = [len(bucket.spans) for bucket in self.buckets]  # spans that are not final, by bucket

    @property
    def bytes_sent(self) -> int:
        return sum(timer.bytes_sent for timer in self.timers)

    @property
    def exposed_s(self) -> float:
        return sum(timer.exposed_s for timer in self.timers)

    @property
    def ready_points(self) -> frozenset[str]:
        """Names of the first span of each bucket, whose gradient backward completes last; none if all buckets start
        together."""
        return frozenset(bucket.spans[0].name for bucket in self.buckets) if self._early else frozenset()

    def part(self, indices: Sequence[int]) -> "Reducer":
        """Return a reducer of some of these buckets alone, whose rounds are its own."""
        buckets = [self.buckets[index] for index in indices]
        reductions = [self.reductions[index] for index in indices]
        return Reducer(buckets, reductions, self._deadline_s, self._streams, self._early, clock=self._clock)

    def watch(self, trace: Trace | None) -> None:
        """Call ``trace(verb, index, start, stop)`` from now on: ("land", …) from the start of a bucket's reduction to
        its end; ("start" | "test" | "wait", …) for the time in which the loop was blocked. None ends it."""
        self._trace = trace

    def grad_ready(self, span: Span) -> None:
        """Note that this gradient is final on this rank; start the buckets that are final, in order, up to the first
        that is not."""
        self._missing[self.index_of[span.name]] -= 1
        if not self._early:
            return
        while self._next < len(self.order) and not self._missing[self.order[self._next]]:
            self._announce_next()
        self.test()

    def start(self, unreleased: Collection[int] = ()) -> None:
        """Start all buckets, which are final on this rank; those of the indices ``unreleased`` after a release."""
        self._unreleased.update(unreleased)
        while self._next < len(self.buckets):
            self._announce_next()
            self.test()

    def release(self, index: int, exposed: bool = True) -> None:
        """Start a bucket that was held, which is final on this rank. ``exposed``: as in :meth:`test`."""
        self._unreleased.remove(index)
        self._announced.append((self._streams.final(), index))
        self.test(exposed)

    def _announce_next(self) -> None:
        index, mark = self.order[self._next], self._streams.final()
        self._next += 1
        if self.reductions[index].blocks:
            mark.wait()
        else:
            self.reductions[index].announce()
        self._under_way.add(index)
        if index not in self._unreleased:
            self._announced.append((mark, index))

    def test(self, exposed: bool = True) -> None:
        """Start the announced buckets that are final by now, and test those in flight, without waiting. ``exposed``:
        the time counts as time in which the loop was blocked."""
        while self._announced and self._announced[0][0].done():
            index = self._announced.popleft()[1]
            reduction, began = self.reductions[index], self._clock()
            self.timers[index].start(began, (reduction.bytes_sent or 0) * self._counts)
            self._in_flight.append(index)
            reduction.start()
            if exposed:
                self._count_blocked("start", index, began)
        for index in tuple(self._in_flight):
            began = self._clock()
            done = self.reductions[index].test()
            if exposed:
                self._count_blocked("test", index, began)
            if done:
                self._in_flight.remove(index)
                self._complete(index)

    def arrivals(self) -> Iterator[Bucket]:
        """Start all buckets, which are final on this rank, and yield each in that order when it has arrived. Then the
        next round may begin."""
        self.start()
        for index in self.order:
            yield self.arrive(index)

    def has_landed(self, index: int) -> bool:
        """Whether the reduction of a bucket is complete: :meth:`take` may return it."""
        return index not in self._under_way

    def arrive(self, index: int) -> Bucket:
        """Wait for one bucket, while the others progress. All have been announced. Call it, or :meth:`take`, once for
        each bucket, in the same order on all ranks, unless the reductions of all progress meanwhile. Then the next
        round may begin."""
        self.test()
        if self._announced:
            self._wait_until_started(index)
        if index in self._in_flight:
            self._in_flight.remove(index)  # what is called during the wait tests the others alone
            began = self._clock()
            self.reductions[index].wait(self._deadline_s)
            self._count_blocked("wait", index, began)
            self._complete(index)
        return self.take(index)

    def take(self, index: int) -> Bucket:
        """Return a bucket that has landed."""
        self._streams.join()
        self._left -= 1
        if not self._left:
            self._begin_round()
        return self.buckets[index]

    def wait_all(self) -> None:
        """Wait for all buckets."""
        for _ in self.arrivals():
            pass

    def wait_aside(self) -> None:
        """Wait for all buckets, whose bytes and seconds are not those of training: of an evaluation, a checkpoint."""
        self._counts = False
        self.wait_all()
        self._counts = True

    def _wait_until_started(self, index: int) -> None:
        """Wait for the device to compute gradients: until all buckets have started, or this one has arrived. This time
        is not exposed communication: the loop waits for its own device."""

        def enough() -> bool:
            self.test(exposed=False)
            return not self._announced or self.has_landed(index)

        def awaited() -> str:
            return f"this rank's device to make {self.buckets[self._announced[0][1]].name} final"

        wait_for(enough, self._deadline_s, awaited, lambda: len(self._announced))

    def _complete(self, index: int) -> None:
        self._under_way.remove(index)
        timer, ended = self.timers[index], self._clock()
        timer.end(ended)
        if self._trace:
            self._trace("land", index, timer.started, ended)

    def _count_blocked(self, verb: str, index: int, began: float) -> None:
        ended = self._clock()
        self.timers[index].add_exposed((ended - began) * self._counts)
        if self._trace:
            self._trace(verb, index, began, ended)

    def close(self) -> None:
        """Release the prepared reductions."""
        self.reductions = ()

    def traffic(self, what: str) -> Iterator[BucketTraffic]:
        """Yield the traffic of each bucket; ``what``: its content."""
        for bucket, reduction, timer in zip(self.buckets, self.reductions, self.timers, strict=True):
            times = timer.total_s, timer.each_exposed_s
            yield BucketTraffic(what, bucket.name, bucket.nbytes, reduction.algorithm, *times)


class ForwardGate:
    """Waits for the buckets of ``reducer`` when forward reads them: they start in the order in which forward reads.
    ``outgoing``: indices of buckets that this rank sends, after their release; ``alone``: it alone has all of them, and
    forward does not wait until others have received them."""

    def __init__(self, reducer: Reducer, outgoing: Sequence[int], alone: bool):
        self._reducer, self._unreleased, self._outgoing = reducer, outgoing, outgoing if alone else ()
        self._awaited = [index for index in reducer.order if index not in self._outgoing]
        before = {index: number + 1 for number, index in enumerate(self._awaited)}
        self._number = {name: before.get(index, 0) for name, index in reducer.index_of.items()}
        self._in_round, self._arrived = False, 0  # buckets of ``_awaited`` that have arrived in this round

    def start(self) -> None:
        """Begin a round, after the last one has been completed."""
        self.wait_all()
        self._reducer.start(self._unreleased)
        self._in_round, self._arrived = True, 0

    def before_read(self, span: Span) -> None:
        """Wait for the bucket of this span."""
        if self._in_round:
            self._reducer.test()
            self._wait(self._number[span.name])

    def wait_all(self) -> None:
        """Wait for all buckets, until others have received this rank's, too."""
        if not self._in_round:
            return
        self._wait(len(self._awaited))
        for index in self._outgoing:
            self._reducer.arrive(index)
        self._in_round = False

    def _wait(self, count: int) -> None:
        while self._arrived < count:
            self._reducer.arrive(self._awaited[self._arrived])
            self._arrived += 1


class TrafficSource(Protocol):
    """A sender of messages."""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def exposed_s(self) -> float: ...


class Reducers:
    """The reducers of a strategy: for traces, for the count of bytes and time, and for the end of a run.

    training: the reducers of an iteration, by the name of what they carry
    others:   reducers used outside of iterations; their bytes and seconds are not counted
    messages: further senders, whose bytes and seconds are counted
    received: returns the bytes that this rank has received; None where they are not counted
    buckets:  whether traffic is reported by bucket
    before_close: completes the messages in flight
    """

    def __init__(
        self,
        training: Mapping[str, Reducer],
        others: Sequence[Reducer] = (),
        messages: Sequence[TrafficSource] = (),
        received: Callable[[], int] | None = None,
        buckets: bool = True,
        before_close: Callable[[], None] | None = None,
    ):
        self.training, self._others, self._messages = training, others, messages
        self._received, self._buckets, self._before_close = received, buckets, before_close

    def traffic(self) -> Traffic:
        """Return the bytes and the seconds of training, without a gathered state's."""
        rows = [row for name, reducer in self.training.items() if self._buckets for row in reducer.traffic(name)]
        return Traffic(
            self.bytes_sent,
            self.exposed_s,
            self._received and self._received(),
            tuple(rows),
        )

    @property
    def bytes_sent(self) -> int:
        """The bytes that this rank has sent, as in :meth:`traffic`, at little cost."""
        return sum(one.bytes_sent for one in self._counted)

    @property
    def exposed_s(self) -> float:
        """The seconds for which training has waited, as in :meth:`traffic`, at little cost."""
        return sum(one.exposed_s for one in self._counted)

    @property
    def _counted(self) -> list[TrafficSource]:
        return [*self._messages, *self.training.values()]

    def close(self) -> None:
        """Release the prepared reductions; collective."""
        if self._before_close:
            self._before_close()
        for reducer in (*self.training.values(), *self._others):
            reducer.close()
