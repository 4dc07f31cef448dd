"""What may tell a rank to stop, noted, so that the loop stops where all ranks can: Ctrl-C, SIGTERM, a scheduler's
SIGUSR1, and the end of the job that the run is in."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from ringtrain.train import texts
from ringtrain.transport.base import Handle, Transport

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
INTERRUPTED_AGAIN = 130  # what a second Ctrl-C ends with


def nothing() -> None:
    pass


class StopFlag:
    """Set by the first stopping signal, or by what ``other()`` says. The second Ctrl-C ends the process at once, with
    :data:`INTERRUPTED_AGAIN`, unless the run has stopped already (:meth:`stopped`); any other second signal is no more
    than the first.

    ``other()``: another reason to stop, in words; None where there is none.
    ``before_end()``: called by the second Ctrl-C, to write what became of the run
    ``end_all()``: called after that, to end the other ranks
    """

    def __init__(self):
        self._why: str | None = None
        self.ending = False  # whether a launcher, or a user, is about to end the process
        self.other: Callable[[], str | None] = nothing
        self.before_end: Callable[[], None] = nothing
        self.end_all: Callable[[], None] = nothing
        self._before, self._stopped = {}, False

    def install(self) -> "StopFlag":
        for number in STOPPING:
            self._before[number] = signal.signal(number, self._note)
        return self

    def remove(self, last: bool = False) -> None:
        """Signals do what they did before. ``last``: the process is about to end; then a SIGUSR1 that comes late, which
        would kill, is passed over: its sender wants the end that comes. So is a Ctrl-C when a run has
        stopped: its status says that there is a checkpoint."""
        for number, handler in self._before.items():
            late = {signal.SIGUSR1: handler == signal.SIG_DFL, signal.SIGINT: self._stopped}.get(number, False)
            signal.signal(number, signal.SIG_IGN if last and late else handler)
        self._before.clear()

    def stopped(self) -> None:
        """The run has stopped, and all ranks know that its checkpoint is written: Ctrl-C changes nothing any more."""
        self._stopped = True
        if signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _note(self, number, frame) -> None:
        self._why = self._why or texts.BY_SIGNAL(signal=signal.Signals(number).name)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._end)
        if number != signal.SIGUSR1:
            self.ending = True

    def _end(self, number, frame) -> None:
        """Here, and by no exception: that may be raised where it is swallowed, as in a callback."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third one, should this take long
        try:
            self.before_end()
            with suppress(RuntimeError, OSError):  # the former where this interrupts a write
                sys.stdout.flush()
            self.end_all()
        finally:
            os._exit(INTERRUPTED_AGAIN)

    def __call__(self) -> bool:
        return self.why() is not None

    def why(self) -> str | None:
        """Why this rank has to stop: "by SIGUSR1"; None where it has not."""
        self._why = self._why or self.other()
        return self._why


@contextmanager
def watching(last: bool = False) -> Iterator[StopFlag]:
    """Signals are noted, in place of what they do otherwise. ``last``: see :meth:`StopFlag.remove`."""
    stop = StopFlag().install()
    try:
        yield stop
    finally:
        stop.remove(last)


def never() -> bool:
    return False


class StopPoll:
    """Whether any rank was told to stop, a question late: each is answered when the next one is put, so that nobody
    waits for it. Every rank puts as many. Collective.

    stop_requested: of this rank
    """

    def __init__(self, transport: Transport, stop_requested: Callable[[], bool], deadline_s: float):
        self._transport, self._told_to_stop, self._deadline_s = transport, stop_requested, deadline_s
        self._sum = np.zeros(1)
        self._pending: Handle | None = None

    def __call__(self) -> bool:
        stop = self.answer()
        self._sum[0] = self._told_to_stop()
        self._pending = self._transport.native_allreduce_start(self._sum)
        return stop

    def answer(self) -> bool:
        """To the last question, now."""
        if self._pending is None:
            return False
        self._pending.wait(self._deadline_s)
        self._pending = None
        return self._sum[0] > 0
