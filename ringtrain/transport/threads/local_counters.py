"""Numbers in the memory of all threads of a loopback world."""

from collections.abc import Callable

import numpy as np

from ringtrain.transport.counters import Counters


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
