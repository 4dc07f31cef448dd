"""A rank that is k times slower than it is, to see which algorithm suffers.

All that a rank does for an all-reduce (posting messages, moving them, adding) it does while it is asked to go on:
whoever waits calls ``test`` until it is done. Here each such call takes k times as long as it did, the rest of the time
spent computing nothing. So a rank behaves whose core has a k-th of the speed; links and memory are not slowed, and what
an MPI does in threads of its own is not either. A call that blocks inside the MPI cannot be slowed from outside.
"""

import time
from collections.abc import Callable

from ringtrain.collectives.reduction import Reduction
from ringtrain.transport.base import Handle
from ringtrain.transport.waiting import wait_for


class Slowed(Handle):
    """A reduction as a rank drives it that is ``factor`` times slower."""

    def __init__(self, reduction: Reduction, factor: float, clock: Callable[[], float] = time.perf_counter):
        self._reduction, self._factor, self._clock = reduction, factor, clock

    def start(self) -> None:
        self._stretched(self._reduction.start)

    def test(self) -> bool:
        return self._stretched(self._reduction.test)

    def wait(self, deadline_s: float) -> None:
        awaited = f"the other ranks of {self._reduction.algorithm}"
        wait_for(self.test, deadline_s, lambda: awaited, progress=lambda: self._reduction.moved)

    def _stretched(self, action: Callable):
        began = self._clock()
        value = action()
        until = began + self._factor * (self._clock() - began)
        while self._clock() < until:
            pass
        return value
