"""Who adds and copies for an all-reduce in shared memory: this process at once, or a device in its own time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np


class Mark(ABC):
    """A point in a worker's work."""

    @abstractmethod
    def done(self) -> bool:
        """Whether all that was asked for before it is done."""


Action = tuple[Callable, tuple]  # a function with its arguments, prepared once and called again and again


class Worker(ABC):
    """piece_bytes: how much of a buffer is worked on at once; what is longer is cut"""

    piece_bytes: int

    @abstractmethod
    def copying(self, source, target) -> list[Action]: ...

    @abstractmethod
    def adding(self, sources: Sequence, target) -> list[Action]:
        """target = the sum of all sources, in their order; they are of one size, and ``target`` is none of them."""

    @abstractmethod
    def mark(self) -> Mark: ...


class _Now(Mark):
    def done(self) -> bool:
        return True


NOW = _Now()


class HostWorker(Worker):
    """``combine(a, b, y)``: y = a op b, elementwise, done when it returns."""

    def __init__(self, combine: Callable, piece_bytes: int):
        self._combine, self.piece_bytes = combine, piece_bytes

    def copying(self, source, target) -> list[Action]:
        return [(np.copyto, (target, source))]

    def adding(self, sources: Sequence, target) -> list[Action]:
        first, *others = sources
        if not others:
            return self.copying(first, target)
        sums = [first] + [target] * (len(others) - 1)
        return [(self._combine, (a, b, target)) for a, b in zip(sums, others, strict=True)]

    def mark(self) -> Mark:
        return NOW


class DeviceWorker(Worker):
    """``ops``: of the device whose memory it is; its operations are done in the order in which they are asked for."""

    def __init__(self, ops, piece_bytes: int):
        self._ops, self.piece_bytes = ops, piece_bytes

    def copying(self, source, target) -> list[Action]:
        return [(self._ops.copy, (source, target))]

    def adding(self, sources: Sequence, target) -> list[Action]:
        return [(self._ops.add_all, (batch, [target])) for batch in _batches(sources, target)]

    def mark(self) -> Mark:
        return self._ops.mark()


AT_ONCE = 8  # sources of one kernel


def _batches(sources: Sequence, target) -> list[list]:
    """What each kernel adds: the first ones, then what they made with further ones."""
    batches = [list(sources[:AT_ONCE])]
    for start in range(AT_ONCE, len(sources), AT_ONCE - 1):
        batches.append([target, *sources[start : start + AT_ONCE - 1]])
    return batches
