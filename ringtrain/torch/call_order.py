"""Callbacks of futures, which may make collectives, as those of PyTorch's hooks for DDP do.

Ranks make the collectives of a communicator in one order, and a callback runs between any two calls of the script, on
each rank between others. So the callbacks of a group run in a thread, in the order in which the script gave them; and
their collectives have a communicator of their own, made by the first one.
"""

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

# depth: 0 in the script's threads, 1 in the threads of their callbacks, 2 in those of the callbacks' own callbacks
_thread_local = threading.local()


class CallOrder:
    """The collectives of a group that have one order on all ranks, and the thread of the callbacks that follow them.

    make:  make(depth) → a communicator of the group's ranks. Collective
    """

    def __init__(self, make: Callable[[int], Any], depth: int = 0):
        self.communicator = make(depth)
        self.lock = threading.RLock()  # a communicator takes one caller at a time
        self.coalesced: list | None = None
        self._make, self._depth = make, depth
        self._making, self._starting = threading.Lock(), threading.Lock()
        self._callback_order: CallOrder | None = None
        self._callbacks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def of_this_thread(self) -> "CallOrder":
        """Return the order to which the calls of this thread belong."""
        order = self
        for _ in range(getattr(_thread_local, "depth", 0)):
            with order._making:
                if order._callback_order is None:
                    order._callback_order = CallOrder(order._make, order._depth + 1)
            order = order._callback_order
        return order

    def move(self) -> None:
        """Make the collectives that follow by a new communicator, after the death of a rank. Collective."""
        self.communicator, self.coalesced, self._callback_order = self._make(self._depth), None, None

    def call_back(self, function: Callable[[], None]) -> None:
        """Run the function in the thread of callbacks, after those before it."""
        self._callbacks.put(function)
        with self._starting:
            if self._thread is None:
                name = f"callbacks of rank {self.communicator.rank}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        _thread_local.depth = self._depth + 1
        for function in iter(self._callbacks.get, None):
            try:
                function()
            except Exception:
                threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))

    def close(self) -> None:
        """Close the communicators when all callbacks have run. Collective."""
        self._callbacks.put(None)
        if self._thread is not None:
            self._thread.join()
        if self._callback_order is not None:
            self._callback_order.close()
        self.communicator.close()


class WorkFuture(torch.futures.Future):
    """The future of a collective, or of a callback that follows one. PyTorch's own runs callbacks in the thread that
    ends the collective, or in the caller's if it has ended."""

    def __init__(self, order: CallOrder):
        super().__init__()
        self._order = order

    def set_exception(self, error: Exception) -> None:
        """End with an error. PyTorch's C++, which knows no error of Python's, fails where it reads this value."""
        value = _Failing(error)
        _latest.append(weakref.ref(value))
        self._set_unwrap_func(_Failing.fail)
        self.set_result(value)

    def then(self, callback: Callable) -> "WorkFuture":
        after = WorkFuture(self._order)

        def run(done: WorkFuture) -> None:
            try:
                after.set_result(callback(done))
            except Exception as error:
                after.set_exception(error)

        self.add_done_callback(run)
        return after

    def add_done_callback(self, callback: Callable) -> None:
        ended = torch.futures.Future.then(self, lambda _: None)  # waiting for it raises no error of this one

        def run() -> None:
            ended.wait()
            callback(self)

        self._order.call_back(run)


class _Failing:
    """The value of a future with an error. DDP looks for tensors in it, by pickling, and shows one that is none."""

    def __init__(self, error: Exception):
        self.error = error

    def fail(self):
        raise self.error

    __reduce__ = fail

    def __repr__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"  # as PyTorch shows an error that it meets


_latest: deque["weakref.ref[_Failing]"] = deque(maxlen=1000)  # of all futures, as long as these live


def quoted_error(error: Exception) -> Exception:
    """Return the error of a future that an error of PyTorch's C++ quotes, as one of DDP's backward does; else that."""
    values = [value for reference in tuple(_latest) if (value := reference()) is not None and repr(value) in str(error)]
    if type(error) is not RuntimeError or not values:
        return error
    quoted = max(values, key=lambda value: len(repr(value)))  # "collective 1" is a part of "collective 12"
    return quoted.error.with_traceback(error.__traceback__)
