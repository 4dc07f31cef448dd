"""Sums of the threads of a loopback world: all-reduces in flight, and counters."""

from collections.abc import Callable

import numpy as np

from ringtrain.transport import texts
from ringtrain.transport.base import Handle
from ringtrain.transport.counters import Counters
from ringtrain.transport.waiting import Patience, wait_for


class ThreadSum:
    """One all-reduce in flight: the contribution of each rank so far."""

    def __init__(self, size: int):
        self._contributions: list = [None] * size
        self._missing = size

    def give(self, rank: int, contribution: np.ndarray) -> None:
        """Add a rank's contribution. Call it under the world's lock."""
        self._contributions[rank] = contribution
        self._missing -= 1

    @property
    def whole(self) -> bool:
        return not self._missing

    def total(self) -> np.ndarray:
        """Return the sum in rank order, so that all ranks get the same bits."""
        total = self._contributions[0].copy()
        for contribution in self._contributions[1:]:
            total += contribution
        return total


class SumHandle(Handle):
    """This rank's end of a :class:`ThreadSum`, done when all ranks have contributed."""

    def __init__(self, span, sum: ThreadSum, patience: Patience, check: Callable[[], None]):
        self._span, self._patience, self._check = span, patience, check
        self._sum: ThreadSum | None = sum

    def start(self) -> None:
        """Do nothing: the sum is in flight from the start."""

    def test(self) -> bool:
        if self._sum is None:
            return True
        if not self._sum.whole:
            self._check()
            return False
        self._span[...] = self._sum.total()
        self._sum = None
        return True

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, lambda: texts.AWAITED_ALLREDUCE, patience=self._patience)


class LocalCounters(Counters):
    """Counters in the memory of all threads. ``numbers`` is the same array on every rank."""

    def __init__(self, numbers: np.ndarray, lock, barrier: Callable[[], None], rank: int):
        self._numbers, self._lock, self._barrier, self._rank = numbers, lock, barrier, rank

    def take(self, place: int, amount: float) -> float:
        with self._lock:
            before = float(self._numbers[place])
            self._numbers[place] += amount
        return before

    def add(self, start: int, values: np.ndarray) -> None:
        with self._lock:
            self._numbers[start : start + len(values)] += values

    def read(self) -> np.ndarray:
        with self._lock:
            return self._numbers.copy()

    def clear(self) -> None:
        self._barrier()
        if self._rank == 0:
            self._numbers[...] = 0
        self._barrier()
