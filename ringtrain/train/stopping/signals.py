"""Notes Ctrl-C, SIGTERM, a scheduler's SIGUSR1 and the end of the job, so that all ranks stop after one iteration. A
second Ctrl-C, and the end of the terminal (SIGHUP), end the process at once.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ringtrain.errors import HungUp
from ringtrain.transport.base import Handle, Transport

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
INTERRUPTED_AGAIN = 130  # the exit code of a second Ctrl-C
AT_ONCE = {signal.SIGINT: INTERRUPTED_AGAIN, signal.SIGHUP: HungUp.exit_code}


class StopFlag:
    """Set by the first stopping signal, or by a reason of ``other()``. A second Ctrl-C ends the process at once, with
    :data:`INTERRUPTED_AGAIN`, unless the run has stopped (:meth:`stopped`); any other second signal changes nothing. So
    does SIGHUP with 129, unless it is ignored, as under nohup.

    ``other()``: another reason to stop, in words, or None
    ``before_end(error)``: called by a signal that ends the process at once, to write the outcome of the run
    ``end_all(code)``: called after that, to end the other ranks
    """

    def __init__(self):
        self._why: str | None = None
        self.ending = False  # whether a launcher, or a user, is about to end the process
        self.other: Callable[[], str | None] = lambda: None
        self.before_end: Callable[[BaseException], None] = lambda error: None
        self.end_all: Callable[[int], None] = lambda code: None
        self._before: dict[signal.Signals, Any] = {}
        self._stopped = False

    def install(self) -> "StopFlag":
        for number in STOPPING:
            self._before[number] = signal.signal(number, self._note)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._end)
        return self

    def remove(self, last: bool = False) -> None:
        """Give signals their former handlers. ``last``: the process is about to end. Then a late SIGUSR1, which would
        kill, is ignored, since its sender wants this end; and so are those that end a run at once after it has stopped,
        since the exit code says that there is a checkpoint."""
        for number, handler in self._before.items():
            late = self._stopped if number in AT_ONCE else number == signal.SIGUSR1 and handler == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if last and late else handler)
        self._before.clear()

    def stopped(self) -> None:
        """Ignore Ctrl-C and SIGHUP from now on: the run has stopped, and all ranks know that its checkpoint is
        written."""
        self._stopped = True
        for number in AT_ONCE:
            if number in self._before:
                signal.signal(number, signal.SIG_IGN)

    def _note(self, number, frame) -> None:
        self._why = self._why or f"by {signal.Signals(number).name}"
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._end)
        if number != signal.SIGUSR1:
            self.ending = True

    def _end(self, number, frame) -> None:
        """End the process. An exception could be swallowed, as in a callback."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third one must not keep the outcome from being written
        hung_up = number == signal.SIGHUP
        try:
            self.before_end(
                HungUp("SIGHUP: the terminal was closed") if hung_up else KeyboardInterrupt("a second Ctrl-C")
            )
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # for one more, if the rest takes long
            with suppress(RuntimeError, OSError):  # a RuntimeError if this interrupts a write
                sys.stdout.flush()
            self.end_all(AT_ONCE[number])
        finally:
            os._exit(AT_ONCE[number])

    def __call__(self) -> bool:
        return self.why() is not None

    def why(self) -> str | None:
        """The reason why this rank has to stop: "by SIGUSR1"; None if it has not."""
        self._why = self._why or self.other()
        return self._why


@contextmanager
def watching(last: bool = False) -> Iterator[StopFlag]:
    """Note signals, in place of their handlers. ``last``: see :meth:`StopFlag.remove`."""
    stop = StopFlag().install()
    try:
        yield stop
    finally:
        stop.remove(last)


class StopPoll:
    """Asks all ranks whether one has to stop. A call returns the answer to the call before, so that no rank waits.
    Every rank makes as many calls. Collective."""

    def __init__(self, transport: Transport, stop_requested: Callable[[], bool], deadline_s: float):
        self._transport, self._stop_requested, self._deadline_s = transport, stop_requested, deadline_s
        self._sum = np.zeros(1)
        self._pending: Handle | None = None

    def __call__(self) -> bool:
        stop = self.answer()
        self._sum[0] = self._stop_requested()
        self._pending = self._transport.native_allreduce_start(self._sum)
        return stop

    def answer(self) -> bool:
        """Wait for the answer to the last call."""
        if self._pending is None:
            return False
        self._pending.wait(self._deadline_s)
        self._pending = None
        return self._sum[0] > 0
