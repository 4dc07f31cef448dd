"""How ranks go from one meeting (evaluation, checkpoint, the end) to the next: iteration by iteration, together or a
few apart; or as fast as each of them can, on parts that are handed out."""

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from ringtrain.data.batches.batches import Batches
from ringtrain.errors import DivergedError, everywhere
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.run.work_queue import WorkQueue
from ringtrain.train.step.loss_sum import IterationLoss
from ringtrain.transport.base import Transport

TELL_S = 0.1  # between two looks at what has been finished


class IterationDriver(ABC):
    """account: account(outcome), for each finished iteration in order
    tick:    tick(examples, seconds): so many examples of all ranks have taken so long
    """

    def __init__(self, account: Callable[[IterationLoss], None], tick: Callable[[int, float], None]):
        self._account, self._tick = account, tick

    @abstractmethod
    def train(self, first: int, stop: int) -> bool:
        """Run iterations ``first`` up to ``stop``; True where a rank has to stop, which may end them early."""

    @abstractmethod
    def close(self) -> None: ...


class Synchronous(IterationDriver):
    """Every rank has its part of each iteration."""

    def __init__(self, of: Assembly, transport: Transport, first: int, account, tick):
        super().__init__(account, tick)
        self._worker, self._guard, self._exchange = of.worker, of.guard, of.exchange
        self._batches: Batches = of.batches(transport, first, of.iterations)

    def train(self, first: int, stop: int) -> bool:
        stopping = False
        for iteration in range(first, stop):
            if self._guard is not None:
                self._guard.iterate(iteration + 1)
            batch = next(self._batches)
            began = time.perf_counter()
            outcome = self._worker.iterate(batch, self._batches.peek)
            self._tick(batch.total, time.perf_counter() - began)
            stopping = self._account_all([outcome] if outcome else [])
            if stopping:
                break
        self._exchange.serving.drain_peers()
        return self._account_all(self._worker.drain()) or stopping

    def _account_all(self, outcomes: list[IterationLoss]) -> bool:
        for outcome in outcomes:
            self._account(outcome)
        return any(outcome.stop for outcome in outcomes)

    def close(self) -> None:
        self._batches.close()


class WorkQueueDriver(IterationDriver):
    """Every trainer takes the next part that nobody has, and nobody waits for anybody. Rank 0 accounts for what all of
    them have finished as it comes, the others at the meeting."""

    def __init__(self, of: Assembly, transport: Transport, account, tick):
        super().__init__(account, tick)
        self._of, self._transport, self._told_to_stop = of, transport, of.stop_requested
        self._exchange = of.exchange
        self._trains = transport.rank in of.roles.trainers
        self._queue = WorkQueue(transport, len(of.roles.trainers), of.sampler.iterations_per_epoch)

    def train(self, first: int, stop: int) -> bool:
        self._queue.open(first, stop)
        self._told_at = time.perf_counter()
        diverged = None
        if self._trains:
            diverged = self._until_divergence(first, stop)
        else:
            self._exchange.serving.serve(self._account_now_and_then)
        self._exchange.synchronize()
        everyone = self._transport.gather_json((self._told_to_stop(), diverged))  # when that returns, all have finished
        self._account_finished()
        for _, text in everyone:
            if text is not None:
                raise everywhere(DivergedError(text))
        return any(stopping for stopping, _ in everyone)

    def _until_divergence(self, first: int, stop: int) -> str | None:
        """Take parts. What is to be said where the loss of one is not finite: nobody begins another then, and all ranks
        come to the meeting and end together."""
        try:
            self._take_parts(first, stop)
        except DivergedError as error:
            self._queue.end()
            return str(error)
        return None

    def _take_parts(self, first: int, stop: int) -> None:
        """One part is trained on while the next is gathered."""
        asked: queue.SimpleQueue = queue.SimpleQueue()
        tickets = self._queue.tickets(self._told_to_stop)
        with self._of.batches(self._transport, first, stop, units=iter(asked.get, None)) as batches:
            try:
                asked.put(next(tickets, None))
                for batch in batches:
                    asked.put(next(tickets, None))
                    self._queue.report(self._of.worker.iterate(batch, batches.peek))
                    self._account_now_and_then()
            finally:
                asked.put(None)

    def _account_now_and_then(self) -> None:
        if self._transport.rank == 0 and time.perf_counter() - self._told_at > TELL_S:
            self._account_finished()

    def _account_finished(self) -> None:
        """Account for the iterations that all ranks have finished."""
        now = time.perf_counter()
        outcomes = self._queue.finished(self._examples_of)
        if outcomes:
            self._tick(sum(outcome.examples for outcome in outcomes), now - self._told_at)
            self._told_at = now
        for outcome in outcomes:
            self._account(outcome)

    def _examples_of(self, iteration: int) -> int:
        _, start, stop = self._of.sampler.place(iteration)
        return stop - start

    def close(self) -> None:
        """Nothing is open between two meetings."""


def make_driver(of: Assembly, transport: Transport, first: int, account, tick) -> IterationDriver:
    """For a run that begins at iteration ``first``."""
    if of.exchange.facts.dynamic_batches:
        return WorkQueueDriver(of, transport, account, tick)
    return Synchronous(of, transport, first, account, tick)
