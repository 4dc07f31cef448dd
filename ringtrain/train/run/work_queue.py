"""Parts of batches for whoever is free: tickets and sums on rank 0, which need nothing of it.

Between two meetings there are so many iterations of so many parts each; ticket n is part n mod parts of iteration
n / parts. So ranks of different speed have different numbers of parts, and each part is trained on once. Who is told to
stop takes all tickets that are left, and itself finishes the iteration that has been begun.
"""

from collections.abc import Iterator

import numpy as np

from ringtrain.train.step.loss_sum import IterationLoss
from ringtrain.transport.base import Transport

TICKET = 0
ROW = 4  # numbers of an iteration: loss, correct, valid, parts that are done
ALL = 2.0**40  # more tickets than there are


class WorkQueue:
    """Collective to make. ``parts`` of an iteration; ``most`` iterations between two meetings."""

    def __init__(self, transport: Transport, parts: int, most: int):
        self._counters, self._parts = transport.counters(1 + ROW * most), parts
        self._first = self._count = self._told = 0

    def open(self, first: int, stop: int) -> None:
        """Hand out iterations ``first`` up to ``stop``. Collective."""
        self._first, self._count, self._told = first, stop - first, 0
        self._counters.clear()

    def tickets(self, stop_requested) -> Iterator[tuple[int, int]]:
        """(iteration, part), one after another, while there are any."""
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
        """Take all tickets that are left; the number of the first."""
        return int(self._counters.take(TICKET, ALL))

    def _unit(self, number: int) -> tuple[int, int]:
        iteration, part = divmod(number, self._parts)
        return self._first + iteration, part

    def report(self, outcome: IterationLoss) -> None:
        """Add the outcome of a finished part."""
        numbers = np.array([outcome.loss_sum, outcome.correct, outcome.valid, 1.0])
        self._counters.add(1 + ROW * (outcome.iteration - self._first), numbers)

    def finished(self, examples_of) -> list[IterationLoss]:
        """The iterations of which all parts are done and that this rank has not been told of, in order.
        ``examples_of(iteration)``: how many it has."""
        rows = self._counters.read()[1:].reshape(-1, ROW)[: self._count]
        found = []
        while self._told < self._count and rows[self._told, ROW - 1] == self._parts:
            loss, correct, valid, _ = rows[self._told]
            iteration = self._first + self._told
            found.append(IterationLoss(iteration, examples_of(iteration), float(loss), int(correct), int(valid), False))
            self._told += 1
        return found
