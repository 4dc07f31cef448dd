"""The hang detector: a thread of every process that runs a command. It shows the stacks of the process on SIGUSR2, and
ends the process if a limited stage (an answer of a file system, the start of the MPI) takes too long.

The signal is blocked, and the thread waits for it. A handler in Python would run in the main thread between two
instructions of Python, and so never while that thread is stuck in the MPI or in the kernel; both release the GIL, which
is all that the detector's thread needs. If a library holds the GIL (:meth:`.Activity.holds_gil`), the main thread takes
the signal by ``faulthandler``'s handler, which is C and writes bare stacks. The start of the MPI holds the GIL, too,
and starts threads that inherit the signal mask of the main thread; so until then the detector's thread takes the signal
by that handler.
"""

import faulthandler
import signal
import threading
import time
from collections.abc import Callable

from ringtrain.errors import StalledError
from ringtrain.monitor import stack_dump
from ringtrain.monitor.watchdog import SuspendDetector
from ringtrain.template import escaped, joined
from ringtrain.transport.activity import Activity, NoHardTimeout
from ringtrain.transport.deadline import STDERR, Deadline

EVERY_S = 0.25
SHOW = signal.SIGUSR2  # on which stacks are shown
LATER_S = 2.0  # the thread has so long to report first: it knows more


class HardTimeout(NoHardTimeout):
    """Ends the process when a library holds the GIL for longer than a stage may take. For the main thread.

    who:   "rank 3 (node7)"
    takes: whether the main thread takes :data:`SHOW` meanwhile, by ``faulthandler``'s handler: the thread that waits
           for the signal cannot answer
    """

    def __init__(self, who: str):
        self.takes, self._who = False, who

    def arm(self, text: str, seconds: float) -> None:
        message = escaped(f"{self._who}: no progress for {seconds:g} s in {text}: the call does not return")
        self._deadline = Deadline(seconds + LATER_S, StalledError.exit_code, message, stacks=True).start()
        if self.takes:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {SHOW})

    def disarm(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {SHOW})
        self._deadline.stop()


class HangDetector:
    """rank: of this process, as the launcher says it
    end:  end(error) ends the process, and the world if there is one

    Use it as a context manager, in the thread that starts all others. Stacks are bare until :meth:`listen`.
    """

    def __init__(self, activity: Activity, rank: int, end: Callable[[StalledError], None], clock=time.monotonic):
        self._activity, self._rank, self._end, self._clock = activity, rank, end, clock
        self._resumed = clock()
        self._pauses = SuspendDetector(EVERY_S, self._resumed)
        self._started, self._called, self._listening = (threading.Event() for _ in range(3))
        self._ending, self._reported = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="hang detector", daemon=True)

    def __enter__(self) -> "HangDetector":
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {SHOW})  # threads that are started inherit it
        faulthandler.register(SHOW, file=STDERR, all_threads=True)
        self._activity.hard_timeout = HardTimeout(f"rank {self._rank} ({self._activity.host})")
        self._thread.start()
        self._started.wait()
        return self

    def listen(self) -> None:
        """Show full stacks from now on: the MPI has started its threads."""
        self._called.set()
        self._listening.wait()
        self._activity.hard_timeout.takes = True

    def __exit__(self, *_) -> None:
        self._ending.set()
        self.listen()
        if self._thread.ident is not None:
            signal.pthread_kill(self._thread.ident, SHOW)
        self._thread.join()
        self._activity.hard_timeout = NoHardTimeout()
        faulthandler.unregister(SHOW)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {SHOW})
        self._started.set()
        while not self._called.wait(EVERY_S):
            self._look_and_end()
        signal.pthread_sigmask(signal.SIG_BLOCK, {SHOW})
        self._listening.set()
        while True:
            asked = signal.sigtimedwait({SHOW}, EVERY_S)
            if self._ending.is_set():
                return
            if asked is not None:
                stack_dump.write_stacks(self._activity, self._rank)
            self._look_and_end()

    def _look_and_end(self) -> None:
        error = None if self._reported else self.look()
        if error is not None:
            self._reported = True
            stack_dump.write_stacks(self._activity, self._rank)
            self._end(error)

    def look(self) -> StalledError | None:
        """The error to report if a stage takes too long; else None."""
        now, stage = self._clock(), self._activity.stage
        if self._pauses.before(now):
            self._resumed = now
        taken_s = now - max(stage.since, self._resumed)
        if not stage.limited or taken_s <= self._activity.deadline_s:
            return None
        stalled = (
            f"no progress for {taken_s:.3g} s in {stage.text}, on rank {self._rank} ({self._activity.host}): the call "
            "does not return. See whether a file system or the network hangs on this node, or another rank hangs; if "
            "they are only slow, give a longer deadline (--deadline-s, RINGTRAIN_DEADLINE_S)"
        )
        return StalledError(joined([stalled, *self._activity.everyone()]))
