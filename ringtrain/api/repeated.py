"""Persistent all-reduce of one array, with other work of the caller meanwhile."""

from collections.abc import Callable

import numpy as np

from ringtrain.api import texts
from ringtrain.api.borrow import BorrowedArray
from ringtrain.api.plan import PreparedReduction
from ringtrain.errors import UsageError


class PersistentAllReduce:
    """An all-reduce of one array that can be started many times. Call :meth:`start` when the array is final on this
    rank; it holds the result when :meth:`test` returns True, or :meth:`wait` returns. Nothing runs in the background:
    tests make the progress. The array belongs to the reduction between the two.

    lend:       returns the array as host memory; of the same shape and type each time
    began:      called before each start
    ended:      called after each end
    deadline_s: how long to wait for ranks without progress
    """

    def __init__(
        self,
        prepared: PreparedReduction,
        array,
        lend: Callable[[], BorrowedArray],
        began: Callable,
        ended: Callable,
        deadline_s: float,
    ):
        self._prepared, self._array, self._lend, self._deadline_s = prepared, array, lend, deadline_s
        self._began, self._ended = began, ended
        self._loan: BorrowedArray | None = None

    @property
    def algorithm(self) -> str:
        """Name of the algorithm; auto:NAME if auto chose it."""
        return self._prepared.reduction.algorithm

    @property
    def why(self) -> str:
        """Reason of that choice; "" without one."""
        return self._prepared.reduction.why

    def start(self) -> None:
        """Start. Raises UsageError if it is in flight. All ranks start their reductions in the same order."""
        if self._loan is not None:
            raise UsageError(texts.STARTED_AGAIN)
        self._began(self)
        self._loan = self._lend()
        np.copyto(self._prepared.span.reshape(self._loan.host.shape), self._loan.host)
        self._prepared.reduction.start()

    def test(self) -> bool:
        """Make all the progress that is possible without waiting. Returns whether it is done; True if it was never
        started.
        """
        if self._loan is None:
            return True
        if not self._prepared.reduction.test():
            return False
        self._finish(self._loan)
        return True

    def wait(self):
        """Wait for the result and return the array. Raises StalledError if others make no progress."""
        if self._loan is not None:
            self._prepared.reduction.wait(self._deadline_s)
            self._finish(self._loan)
        return self._array

    def _finish(self, loan: BorrowedArray) -> None:
        self._prepared.finish()
        self._loan = None
        np.copyto(loan.host, self._prepared.span.reshape(loan.host.shape))
        loan.settle()
        self._ended(self)
