"""A thread that watches the progress of ranks. A sign of life is not enough: a rank that lives and waits for ever is as
stuck as a dead one."""

import threading
import time
from collections.abc import Callable

import numpy as np

from ringtrain.monitor.flight_recorder import FlightRecorder

PAUSED_S = 2.0  # a look that is later by so much comes after a pause


class SuspendDetector:
    """Finds the pauses of a job that is suspended and resumed: in a pause no rank can make progress, so its time does
    not count. A look that is late after one in time comes after a pause. A look that is late after another late one
    does not: on an overloaded node every look is late, and a stall there must still be reported.

    at: the time of the first look
    """

    def __init__(self, every_s: float, at: float):
        self._limit_s, self._at, self._late = every_s + PAUSED_S, at, False

    def before(self, now: float) -> float:
        """The seconds before this look that do not count; 0 unless it comes after a pause."""
        passed_s, after_late = now - self._at, self._late
        self._at, self._late = now, passed_s > self._limit_s
        return passed_s if self._late and not after_late else 0.0


EVERY_S = 0.25  # between two looks
LOOKS = 4  # at least so many in a deadline


class Watchdog:
    """Reads the flight recorder every ``every_s`` seconds in a thread, and keeps the time of each rank's last change.

    look: look() runs after each reading; the thread ends when it returns True
    """

    def __init__(self, recorder: FlightRecorder, deadline_s: float, look: Callable[[], bool], clock=time.monotonic):
        self.every_s = min(EVERY_S, deadline_s / LOOKS)
        self._recorder, self._look, self._clock = recorder, look, clock
        self._history, self._beats = recorder.history.copy(), recorder.beats.copy()
        self._at = clock()
        self._pauses = SuspendDetector(self.every_s, self._at)
        self._changed, self._alive = np.full(recorder.size, self._at), np.full(recorder.size, self._at)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watchdog of rank {recorder.rank}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self.every_s):
            self.note()
            if self._look():
                return

    def note(self) -> None:
        """Note which ranks have changed since the last look."""
        now = self._clock()
        paused_s = self._pauses.before(now)
        self._changed += paused_s
        self._alive += paused_s
        history, beats = self._recorder.history.copy(), self._recorder.beats.copy()
        self._changed[(history != self._history).any(axis=1)] = now
        self._alive[beats != self._beats] = now
        self._history, self._beats, self._at = history, beats, now

    def still_s(self) -> float:
        """For how long no rank has made progress, as of the last look."""
        return self._at - float(self._changed.max())

    def quiet_s(self, rank: int) -> float:
        """For how long the rank has given no sign of life."""
        return self._at - float(self._alive[rank])
