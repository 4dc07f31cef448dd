"""The progress thread of a communicator: it runs collectives one after the other, and tests messages meanwhile.

A collective is a function that blocks. The thread runs those that were started with ``async_op`` in the order of their
calls, and so do all ranks. A blocking call runs in the caller's thread if no other is in flight, else behind them.
Messages are in flight from their call on; while a collective waits, its wait tests them (:meth:`ProgressThread.poll`).
Without work the thread sleeps, and ends after a minute.
"""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ringtrain.api.usable import Usable
from ringtrain.api.work import IN_CALLBACK, MessageWork, Work
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.transport.base import MessageHandle, Transport
from ringtrain.transport.waiting import wait_for

NEVER_S = float("inf")
IDLE_S = 60.0  # after which the thread ends
JOIN_S = 5.0  # more than any step of the thread takes


class ThreadEnds(RingtrainError):
    """The progress thread is told to end while an operation is under way."""


class ProgressThread:
    """The operations of a communicator in flight, and the thread that moves them, which starts with the first. Messages
    are tested whenever the transport waits. ``ending``: whether the thread has to end, or must not start"""

    def __init__(self, transport: Transport, usable: Usable):
        self._transport, self.usable = transport, usable
        self._changed = threading.Condition()
        self._jobs: deque[Work] = deque()  # the first is under way
        self._messages: list[MessageWork] = []
        self._failed: Work | None = None  # the first operation whose error no call has raised
        self._thread: threading.Thread | None = None
        self.ending = False
        self._before = transport.patience
        transport.patience = replace(transport.patience, poll=self.poll)
        transport.before_leaving.append(self.stop)
        self._at_exit = partial(_stop, weakref.ref(self))
        atexit.register(self._at_exit)

    # ── the caller's thread ───────────────────────────────────────────────────────────────────────────────
    def perform(self, called: object, action: Callable[[], Any], async_op: bool):
        """Return the result of ``action()``, or its Work. Raises as :meth:`check_call` does."""
        with self.usable:
            self.check_call(async_op)
            if not async_op and not self._jobs:
                return action()
            work = Work(called, action)
            self._start(work)
            return work if async_op else work.wait()

    def deliver(
        self, called: object, handle: MessageHandle, finish: Callable[[], Any], deadline_s: float
    ) -> MessageWork:
        """Return the Work of a message that is in flight; ``finish()`` → its result."""
        work = MessageWork(called, handle, finish, self._transport.patience, deadline_s, self._wake)
        self._start(work)
        return work

    def check_call(self, async_op: bool) -> None:
        """Check that a call may be made now. Raises the error of an earlier operation that was not waited for, and
        UsageError in a function of :meth:`Work.add_done_callback`, or if the transport has one thread alone."""
        _check_outside_callback()
        if async_op and self._transport.why_one_thread:
            raise UsageError(
                f"async_op needs a thread that calls the MPI: {self._transport.why_one_thread}. Leave async_op out"
            )
        self.check()

    def check(self) -> None:
        """Raise the error of an operation that was not waited for."""
        failed, self._failed = self._failed, None
        if failed is not None and not failed.raised:
            failed.wait()

    @property
    def idle(self) -> bool:
        """Whether no collective is in flight, no operation has failed unseen, and no callback runs."""
        return not self._jobs and self._failed is None and not IN_CALLBACK

    def settle(self) -> None:
        """Wait until no collective is in flight; messages may be. Raises the error of an operation that was not
        waited for, and UsageError if the communicator is of no more use, or in a function of
        :meth:`Work.add_done_callback`."""
        self.usable.check()
        _check_outside_callback()
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs)
        self.check()

    def drain(self) -> None:
        """Wait until no operation is in flight. Raises the error of one that was not waited for."""
        self.settle()
        for work in list(self._messages):
            if not work.ended:
                work.wait()
        self._test_messages()
        self.check()

    def stop(self) -> None:
        """End the thread, whatever is in flight. A second call does nothing."""
        with self._changed:
            self.ending = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)

    def close(self) -> None:
        """End the thread when nothing is in flight."""
        self.stop()
        self._transport.patience = self._before
        with suppress(ValueError):  # the transport has been left after a rank's death
            self._transport.before_leaving.remove(self.stop)
        atexit.unregister(self._at_exit)

    def leave(self, error: RingtrainError) -> None:
        """End all that is in flight with an error, when there is no thread: in a process that is forked a lock may stay
        held."""
        atexit.unregister(self._at_exit)
        self._changed, self._thread = threading.Condition(), None
        for work in (*self._jobs, *self._messages):
            work.leave(error)
        self._jobs.clear()
        self._messages.clear()

    def _start(self, work: Work) -> None:
        with self._changed:
            if isinstance(work, MessageWork):
                self._messages.append(work)
            else:
                self._jobs.append(work)
            if self._thread is None:
                name = f"progress of rank {self._transport.rank}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ── any thread that waits ─────────────────────────────────────────────────────────────────────────────
    def poll(self) -> None:
        """Test the messages in flight; the transport calls this while it waits."""
        self._before.poll()
        if self._messages:
            self._test_messages()
        if self.ending and threading.current_thread() is self._thread:
            raise ThreadEnds("the program ends while operations are in flight: wait() for them first")

    def _test_messages(self) -> None:
        for work in list(self._messages):
            if not work.waiting and work.test():
                self._note(work, work.error())
        with self._changed:
            self._messages = [work for work in self._messages if not work.ended]

    def _note(self, work: Work, error: BaseException | None) -> None:
        if error is not None and self._failed is None:
            self._failed = work

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────
    def _run(self) -> None:
        while not self.ending:
            with self._changed:
                wanted = self._changed.wait_for(lambda: self.ending or self._jobs or self._has_messages(), IDLE_S)
                if not wanted and not self._messages:
                    self._thread = None  # the next operation starts another
                    return
            if self._jobs and not self.ending:
                self._perform(self._jobs[0])
            elif not self.ending:
                wait_for(self._has_other_work, NEVER_S, str, patience=self._before)

    def _has_messages(self) -> bool:
        """Whether a message is in flight that no thread waits for."""
        return any(not work.waiting and not work.ended for work in self._messages)

    def _has_other_work(self) -> bool:
        self._test_messages()
        return bool(self.ending or self._jobs or not self._has_messages())

    def _perform(self, work: Work) -> None:
        """Run an operation and end it; with its error also those behind it, unless all ranks have refused it alike."""
        assert work.action is not None
        result = error = None
        try:
            result = work.action()
        except BaseException as raised:
            error = raised
            self.usable.end_by(error)
            self._note(work, error)
        behind: list[Work] = []
        with self._changed:
            self._jobs.popleft()
            if error is not None and not isinstance(error, UsageError):
                behind, self._jobs = list(self._jobs), deque()
            self._changed.notify_all()
        for each in (work, *behind):
            each.end(result, error)


def _check_outside_callback() -> None:
    """Raise UsageError in a function of :meth:`Work.add_done_callback`. Its thread may be in the wait of a collective,
    and has to run what is behind it."""
    if threading.get_ident() in IN_CALLBACK:
        raise UsageError("a function of add_done_callback calls a communicator: call it outside")


def _stop(reference: "weakref.ref[ProgressThread]") -> None:
    progress = reference()
    if progress is not None:
        progress.stop()
