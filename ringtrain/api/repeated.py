"""One array's all-reduce, again and again, and something else meanwhile."""

from collections.abc import Callable

import numpy as np

from ringtrain.api import texts
from ringtrain.api.borrow import BorrowedArray
from ringtrain.api.plan import PreparedReduction
from ringtrain.errors import UsageError


class PersistentAllReduce:
    """:meth:`start` when the array is final on this rank; the result lies in it when :meth:`test` says True, or
    :meth:`wait` returns. Nothing runs in the background: whoever tests makes it move. The array belongs to the
    reduction between the two.

    lend:       the array as the host sees it now; of the same shape and type each time
    began:      told of each start, before it
    ended:      told of each end
    deadline_s: how long to wait for others that make no progress
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
        """Its name; auto:NAME where it was chosen."""
        return self._prepared.reduction.algorithm

    @property
    def why(self) -> str:
        """What the choice rests on; "" where there was none."""
        return self._prepared.reduction.why

    def start(self) -> None:
        """Raises UsageError where it is under way. All ranks start what they have in the same order."""
        if self._loan is not None:
            raise UsageError(texts.STARTED_AGAIN)
        self._began(self)
        self._loan = self._lend()
        np.copyto(self._prepared.span.reshape(self._loan.host.shape), self._loan.host)
        self._prepared.reduction.start()

    def test(self) -> bool:
        """Whether it is done; makes all the progress that can be made without waiting. True when it was never
        started."""
        if self._loan is None:
            return True
        if not self._prepared.reduction.test():
            return False
        self._finish()
        return True

    def wait(self):
        """The array, when it holds the result. Raises StalledError when others make no progress."""
        if self._loan is not None:
            self._prepared.reduction.wait(self._deadline_s)
            self._finish()
        return self._array

    def _finish(self) -> None:
        self._prepared.finish()
        loan, self._loan = self._loan, None
        np.copyto(loan.host, self._prepared.span.reshape(loan.host.shape))
        loan.settle()
        self._ended(self)
