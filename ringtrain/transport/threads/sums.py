"""What the threads of a loopback world add up: sums that are under way, and a tally."""

from collections.abc import Callable

import numpy as np

from ringtrain.transport import texts
from ringtrain.transport.base import Handle
from ringtrain.transport.counters import Counters
from ringtrain.transport.waiting import Patience, wait_for


class ThreadSum:
    """One all-reduce under way: what each rank has given so far."""

    def __init__(self, size: int):
        self._shares: list = [None] * size
        self._missing = size

    def give(self, rank: int, share: np.ndarray) -> None:
        """Under the world's lock."""
        self._shares[rank] = share
        self._missing -= 1

    @property
    def whole(self) -> bool:
        return not self._missing

    def total(self) -> np.ndarray:
        """In rank order, so that all get the same bits."""
        total = self._shares[0].copy()
        for share in self._shares[1:]:
            total += share
        return total


class SumHandle(Handle):
    """This rank's end of a :class:`ThreadSum`, which is done when all have given theirs."""

    def __init__(self, span, sum: ThreadSum, patience: Patience, check: Callable[[], None]):
        self._span, self._sum, self._patience, self._check = span, sum, patience, check

    def start(self) -> None:
        """It is under way from the start."""

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
    """In the memory that all threads have. ``numbers`` are the same array on every rank."""

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
