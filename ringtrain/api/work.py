"""The handle of an operation that runs while the program does something else."""

import sys
import threading
from collections.abc import Callable
from typing import Any

from ringtrain.errors import StalledError
from ringtrain.transport.base import MessageHandle
from ringtrain.transport.waiting import Patience, wait_for, wait_for_thread

IN_CALLBACK: set[int] = set()  # the threads that see an operation end, and tell functions so


class Work:
    """One operation that was started with ``async_op=True``. Its arrays belong to it until it is done. Any thread may
    call these methods.

    called: the operation, whose text is for messages
    action: runs it and returns its result; None if another object ends it
    """

    def __init__(self, called: object, action: Callable[[], Any] | None = None):
        self.called, self.action = called, action
        self.raised = False  # whether a caller has seen its error
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._callbacks: list[Callable[[Work], None]] = []
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def source(self) -> int | None:
        """The rank that sent a received message; None before it has arrived, and for all other operations."""
        return None

    @property
    def ended(self) -> bool:
        """Whether it is known to be done."""
        return self._ended.is_set()

    def test(self) -> bool:
        """Return whether it is done, without an error or with one."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None):
        """Wait until it is done, and return the result of the call. Raises the error of the operation; StalledError
        after ``timeout_s`` seconds: it then still runs, and may be waited for again. None: the deadline of the
        communicator ends the wait."""
        if not wait_for_thread(self._ended, timeout_s):
            raise StalledError(f"{self.called} is not done after {timeout_s:g} s")
        return self._outcome()

    def add_done_callback(self, function: "Callable[[Work], None]") -> None:
        """Call ``function(work)`` once: at once if the operation is done, else when it ends, from the thread that sees
        it end. An error of the function is printed, and changes nothing."""
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(function)
                return
        self._call(function)

    def error(self) -> BaseException | None:
        """Return the error of the operation; None if it has none, or none yet."""
        return self._error

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Set its outcome, once."""
        with self._lock:
            self._result, self._error, self.action = result, error, None
            callbacks, self._callbacks = self._callbacks, []
            self._ended.set()
        if callbacks:
            self._tell(callbacks)

    def leave(self, error: BaseException) -> None:
        """End it in a process that is forked, where another thread's lock is never released."""
        self._ended, self._lock, self._callbacks = threading.Event(), threading.Lock(), []
        self.end(error=error)

    def _tell(self, callbacks: "list[Callable[[Work], None]]") -> None:
        thread = threading.get_ident()
        nested = thread in IN_CALLBACK
        IN_CALLBACK.add(thread)
        for function in callbacks:
            self._call(function)
        if not nested:
            IN_CALLBACK.discard(thread)

    def _call(self, function: "Callable[[Work], None]") -> None:
        try:
            function(self)
        except Exception:
            threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))

    def _outcome(self):
        if self._error is not None:
            self.raised = True
            raise self._error
        return self._result


class MessageWork(Work):
    """One message. The progress thread tests it, or the thread that waits for it.

    finish:  finish() → the result, when the message has arrived
    patience, deadline_s: how to wait, and how long
    resume:  called when a wait has ended without the message: the progress thread goes on with it
    """

    def __init__(
        self,
        called: object,
        handle: MessageHandle,
        finish: Callable[[], Any],
        patience: Patience,
        deadline_s: float,
        resume: Callable[[], None],
    ):
        super().__init__(called)
        self._handle, self._finish, self._patience, self._deadline_s = handle, finish, patience, deadline_s
        self._resume, self._testing = resume, threading.Lock()
        self.waiting = False  # a thread waits for it, and tests it

    @property
    def source(self) -> int | None:
        return self._handle.source

    def test(self) -> bool:
        if self._testing.acquire(blocking=False):  # otherwise another thread tests it now
            try:
                if not self._ended.is_set() and self._handle.test():
                    self.end(self._finish())
            except Exception as error:
                self.end(error=error)
            finally:
                self._testing.release()
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None):
        self.waiting = True
        try:
            limit_s = self._deadline_s if timeout_s is None else timeout_s
            wait_for(self.test, limit_s, self._handle.awaited, patience=self._patience)
        finally:
            self.waiting = False
            if not self._ended.is_set():
                self._resume()
        return self._outcome()
