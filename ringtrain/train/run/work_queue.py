"""Hands out parts of batches to free ranks: tickets and sums in counters of rank 0, without work of its own.

Ticket n is part n mod parts of iteration n / parts since the last meeting. So a fast rank has more parts, and each part
is trained on once. A rank that has to stop takes all remaining tickets, and finishes the iteration that has begun.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ringtrain.train.step.loss_sum import IterationLoss
from ringtrain.transport.base import Transport

TICKET = 0
ROW = 4  # numbers of an iteration: loss, correct, valid, finished parts
ALL = 2.0**40  # more tickets than there are


class WorkQueue:
    """The queue of ``parts`` an iteration, at most ``most`` iterations between two meetings. Collective to make."""

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
        """Add the outcome of a finished part."""
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
