"""Persistent all-reduce of one array, with other work of the caller meanwhile."""

from collections.abc import Callable

from ringtrain.api.libraries import BorrowedArray
from ringtrain.api.plan import PreparedReduction
from ringtrain.api.progress import ProgressThread
from ringtrain.api.request import Agreement
from ringtrain.errors import UsageError


class PersistentAllReduce:
    """An all-reduce of one array that can be started many times. Call :meth:`start` when the array is final on this
    rank; it holds the result when :meth:`test` returns True, or :meth:`wait` returns. Nothing runs in the background:
    tests make the progress. The array belongs to the reduction between the two.

    lend:       returns the array as host memory; of the same shape and type each time. None: it is the reduction's own
                memory
    progress:   of the other operations, which are waited for before each start
    flying:     the reductions in flight, among them this one
    agreement:  its ``deadline_s`` is how long to wait for ranks without progress
    """

    def __init__(
        self,
        prepared: PreparedReduction,
        array,
        lend: Callable[[], BorrowedArray] | None,
        progress: ProgressThread,
        flying: "set[PersistentAllReduce]",
        agreement: Agreement,
    ):
        self._prepared, self._array, self._lend, self._agreement = prepared, array, lend, agreement
        self._reduction = prepared.reduction
        self._progress, self._usable, self._flying = progress, progress.usable, flying
        self._loan: BorrowedArray | None = None

    @property
    def algorithm(self) -> str:
        """Name of the algorithm; auto:NAME if auto chose it."""
        return self._reduction.algorithm

    @property
    def why(self) -> str:
        """Reason of that choice; "" without one."""
        return self._reduction.why

    def start(self) -> None:
        """Start. Raises UsageError if it is in flight. All ranks start their reductions in the same order."""
        if self in self._flying:
            raise UsageError("the reduction was started again before it finished: wait() first")
        with self._usable:
            self._progress.settle()
            self._loan = self._lend and self._lend()
            if self._prepared.agree is not None:
                self._prepared.agree()
            if self._loan is not None:
                self._prepared.load(self._loan.host)
            self._reduction.start()
            self._flying.add(self)

    def test(self) -> bool:
        """Make all the progress that is possible without waiting. Returns whether it is done; True if it was never
        started."""
        if self in self._flying:
            with self._usable:
                if self._reduction.test():
                    self._finish()
        return self not in self._flying

    def wait(self):
        """Wait for the result and return the array. Raises StalledError if others make no progress."""
        if self in self._flying:
            with self._usable:
                self._reduction.wait(self._agreement.deadline_s)
                self._finish()
        return self._array

    def _finish(self) -> None:
        if self._loan is None:
            self._prepared.finish()
        else:
            self._prepared.store(self._loan.host)
            self._loan.settle()
            self._loan = None
        self._flying.discard(self)
