"""Drives ranks from one meeting (evaluation, checkpoint, the end) to the next: in common iterations, or each at its own
speed, on parts from a queue."""

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np

from ringtrain.errors import DivergedError, everywhere
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.step.loss_sum import IterationLoss
from ringtrain.transport.base import Transport

LOOK_S = 0.1  # between two looks at the finished iterations
TICKET = 0  # the counter of tickets
ROW = 4  # numbers of an iteration: loss, correct, valid, finished parts
ALL = 2.0**40  # more tickets than there are

Account = Callable[[IterationLoss], None]
Tick = Callable[[int, float, float], None]


class IterationDriver(ABC):
    """account: account(outcome), for each finished iteration in order
    tick:    tick(examples, seconds, waited_s), for examples of all ranks, their time, and the time before it in which
             this rank waited for its part
    """

    def __init__(self, run: Assembly, account: Account, tick: Tick):
        self._run, self._transport, self._account, self._tick = run, run.transport, account, tick

    @abstractmethod
    def train(self, first: int, stop: int) -> bool:
        """Run iterations ``first`` up to ``stop``; True if a rank has to stop, which may end them early."""

    def close(self) -> None:  # noqa: B027
        """Nothing is open between two meetings."""


class Synchronous(IterationDriver):
    """Every rank has its part of each iteration."""

    def __init__(self, run: Assembly, first: int, account: Account, tick: Tick):
        super().__init__(run, account, tick)
        self._first, self._batches = first, run.batches(run.transport, first, run.iterations)

    def train(self, first: int, stop: int) -> bool:
        stopping, guard, worker = False, self._run.guard, self._run.worker
        for iteration in range(first, stop):
            if guard is not None:
                guard.iterate(iteration + 1)
            asked = time.perf_counter()
            batch = next(self._batches)
            began = time.perf_counter()
            outcome = worker.iterate(batch, self._batches.peek)
            waited_s = began - asked if iteration > self._first else 0.0  # the loader starts with the first one
            self._tick(batch.total, time.perf_counter() - began, waited_s)
            stopping = self._account_all([outcome] if outcome else [])
            if stopping:
                break
        self._run.exchange.serving.drain_peers()
        return self._account_all(worker.drain()) or stopping

    def _account_all(self, outcomes: list[IterationLoss]) -> bool:
        for outcome in outcomes:
            self._account(outcome)
        return any(outcome.stop for outcome in outcomes)

    def close(self) -> None:
        self._batches.close()


class WorkQueue:
    """Hands out parts of batches to free ranks: tickets and sums in counters of rank 0, without work of its own. There
    are ``parts`` an iteration, and at most ``most`` iterations between two meetings. Collective to make.

    Ticket n is part n mod parts of iteration n / parts since the last meeting. So a fast rank has more parts, and each
    part is trained on once. A rank that has to stop takes all remaining tickets, and finishes the iteration that has
    begun.
    """

    def __init__(self, transport: Transport, parts: int, most: int):
        self._counters, self._parts = transport.counters(1 + ROW * most), parts
        self._first = self._count = self._returned = 0

    def open(self, first: int, stop: int) -> None:
        """Hand out iterations ``first`` up to ``stop``. Collective."""
        self._first, self._count, self._returned = first, stop - first, 0
        self._counters.clear()

    def tickets(self, stop_requested: Callable[[], bool]) -> Iterator[tuple[int, int]]:
        """Take one (iteration, part) after another, while there are any."""
        end = self._count * self._parts
        while not stop_requested():
            number = int(self._counters.take(TICKET, 1))
            if number >= end:
                return
            yield self._unit(number)
        number = self.end()
        last = min(end, -(-number // self._parts) * self._parts)
        yield from map(self._unit, range(number, last))

    def end(self) -> int:
        """Take all remaining tickets; the number of the first."""
        return int(self._counters.take(TICKET, ALL))

    def _unit(self, number: int) -> tuple[int, int]:
        iteration, part = divmod(number, self._parts)
        return self._first + iteration, part

    def report(self, outcome: IterationLoss) -> None:
        numbers = np.array([outcome.loss_sum, outcome.correct, outcome.valid, 1.0])
        self._counters.add(1 + ROW * (outcome.iteration - self._first), numbers)

    def finished(self, examples_of: Callable[[int], int]) -> list[IterationLoss]:
        """The iterations that have finished since the last call, in order. ``examples_of(iteration)``: their number."""
        rows = self._counters.read()[1:].reshape(-1, ROW)[: self._count]
        outcomes = []
        while self._returned < self._count and rows[self._returned, ROW - 1] == self._parts:
            loss, correct, valid, _ = rows[self._returned]
            iteration = self._first + self._returned
            outcomes.append(
                IterationLoss(iteration, examples_of(iteration), float(loss), int(correct), int(valid), False)
            )
            self._returned += 1
        return outcomes


class WorkQueueDriver(IterationDriver):
    """Every trainer takes the next free part, and waits for no other. Rank 0 accounts for finished iterations at once,
    the others at the meeting."""

    def __init__(self, run: Assembly, account: Account, tick: Tick):
        super().__init__(run, account, tick)
        self._queue = WorkQueue(run.transport, len(run.roles.trainers), run.sampler.iterations_per_epoch)

    def train(self, first: int, stop: int) -> bool:
        self._queue.open(first, stop)
        self._looked_at = time.perf_counter()
        diverged = None
        if self._transport.rank in self._run.roles.trainers:
            try:
                self._take_parts(first, stop)
            except DivergedError as error:  # no rank begins another part then, and all end together at the meeting
                self._queue.end()
                diverged = str(error)
        else:
            self._run.exchange.serving.serve(self._account_now_and_then)
        self._run.exchange.synchronize()
        # All ranks have finished when this returns.
        everyone = self._transport.gather_json((self._run.stop_requested(), diverged))
        self._account_finished()
        for _, text in everyone:
            if text is not None:
                raise everywhere(DivergedError(text))
        return any(stopping for stopping, _ in everyone)

    def _take_parts(self, first: int, stop: int) -> None:
        """Train on one part while the next is gathered."""
        units: queue.SimpleQueue = queue.SimpleQueue()
        tickets = self._queue.tickets(self._run.stop_requested)
        with self._run.batches(self._transport, first, stop, units=iter(units.get, None)) as batches:
            try:
                units.put(next(tickets, None))
                for batch in batches:
                    units.put(next(tickets, None))
                    outcome = self._run.worker.iterate(batch, batches.peek)
                    assert outcome is not None, "a rank that waits for no other has its outcome at once"
                    self._queue.report(outcome)
                    self._account_now_and_then()
            finally:
                units.put(None)

    def _account_now_and_then(self) -> None:
        if self._transport.rank == 0 and time.perf_counter() - self._looked_at > LOOK_S:
            self._account_finished()

    def _account_finished(self) -> None:
        now = time.perf_counter()
        outcomes = self._queue.finished(self._examples_of)
        if outcomes:
            self._tick(sum(outcome.examples for outcome in outcomes), now - self._looked_at, 0.0)
            self._looked_at = now
        for outcome in outcomes:
            self._account(outcome)

    def _examples_of(self, iteration: int) -> int:
        _, start, stop = self._run.sampler.place(iteration)
        return stop - start


def make_driver(run: Assembly, first: int, account: Account, tick: Tick) -> IterationDriver:
    """Make the driver of a run that begins at iteration ``first``."""
    if run.exchange.facts.dynamic_batches:
        return WorkQueueDriver(run, account, tick)
    return Synchronous(run, first, account, tick)
