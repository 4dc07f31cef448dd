"""Collectives in flight, as PyTorch waits for them."""

import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ringtrain.errors import RingtrainError, StalledError
from ringtrain.torch.call_order import CallOrder, WorkFuture


@contextmanager
def raising_torchs():
    """Make an error of the block one of PyTorch's too, which scripts catch: a RuntimeError that says of a timeout."""
    try:
        yield
    except RingtrainError as error:
        kind = type(error)
        if not isinstance(error, dist.DistBackendError):
            error.__class__ = type(kind.__name__, (kind, dist.DistBackendError), {"__module__": kind.__module__})
            if isinstance(error, StalledError):
                error.args = (f"the timeout is over: {error}",)
        raise


class CollectiveWork(dist.Work):
    """The works of a :class:`ringtrain.Communicator` that one call of PyTorch has started.

    order:   to which the call belongs
    flights: the works; none if all is done
    finish:  functions that run once, when they are done, in the thread that learns of it first
    value:   what the call's future holds: its tensors
    source:  source() → the sender, for a receive from any rank
    """

    def __init__(
        self,
        order: CallOrder,
        flights: Sequence = (),
        finish: Sequence[Callable] = (),
        value: Any = None,
        source: Callable[[], int] | None = None,
    ):
        super().__init__()
        self._order = order
        self.flights, self._finish, self._value, self._source = flights, finish, value, source
        self._lock = threading.Lock()
        self._future: WorkFuture | None = None
        self._error: BaseException | None = None
        if not flights:
            self._settle()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the tensors hold their results. Raises what the collective raised."""
        with raising_torchs():
            for flight in self.flights:
                flight.wait(timeout.total_seconds() or None)
            self._settle()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not all(flight.test() for flight in self.flights):
            return False
        self._settle()
        return True

    def is_success(self) -> bool:
        return self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of a collective that has ended; None without one."""
        if self._error is None:
            try:
                self.is_completed()
            except Exception as error:
                self._error = error
        return self._error

    def result(self):
        return self._value

    def source_rank(self) -> int:
        assert self._source is not None, "PyTorch asks a receive from any rank"
        return self._source()

    _source_rank = source_rank

    def get_future(self) -> WorkFuture:
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = WorkFuture(self._order)
            left = list(self.flights)

        def one_done(flight) -> None:
            with self._lock:
                left.remove(flight)
                is_last = not left
            if is_last:
                self._end(future)

        if not self.flights:
            future.set_result(self._value)
        for flight in self.flights:
            flight.add_done_callback(one_done)
        return future

    def _end(self, future: WorkFuture) -> None:
        try:
            self.wait()
        except Exception as error:
            self._error = error
            future.set_exception(error)
        else:
            future.set_result(self._value)

    def _settle(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, ()
            for action in finish:
                action()
