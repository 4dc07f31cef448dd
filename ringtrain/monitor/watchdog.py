"""A thread that watches whether ranks get on. It asks for progress, not for life: a rank that is alive and waits for
ever is as stuck as one that is gone."""

import threading
import time
from collections.abc import Callable

import numpy as np

from ringtrain.monitor.flight_recorder import FlightRecorder

PAUSED_S = 2.0  # so much later than it should, a look comes after a pause


class SuspendDetector:
    """A job may be suspended and go on: in that time nobody gets on, and nobody is to blame. A look that comes late
    after one in time comes after a pause. One that comes late after another late one does not: where every look is
    late, on an overloaded node, time counts, or a stall there would never be told.

    at: when the first look was
    """

    def __init__(self, every_s: float, at: float):
        self._limit_s, self._at, self._late = every_s + PAUSED_S, at, False

    def before(self, now: float) -> float:
        """Seconds before this look that do not count; 0 unless it comes after a pause."""
        passed_s, after_late = now - self._at, self._late
        self._at, self._late = now, passed_s > self._limit_s
        return passed_s if self._late and not after_late else 0.0


EVERY_S = 0.25  # between two looks
LOOKS = 4  # at least so many in a deadline


class Watchdog:
    """Looks at the board again and again, in a thread of its own, and keeps when each rank last changed there.

    look: called after each look; the thread ends when it says True
    """

    def __init__(self, board: FlightRecorder, deadline_s: float, look: Callable[[], bool], clock=time.monotonic):
        self.every_s = min(EVERY_S, deadline_s / LOOKS)
        self._board, self._look, self._clock = board, look, clock
        self._history, self._beats = board.history.copy(), board.beats.copy()
        self._at = clock()
        self._pauses = SuspendDetector(self.every_s, self._at)
        self._changed, self._alive = np.full(board.size, self._at), np.full(board.size, self._at)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watchdog of rank {board.rank}", daemon=True)

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
        """Take down who has changed since the last look."""
        now = self._clock()
        paused_s = self._pauses.before(now)
        self._changed += paused_s
        self._alive += paused_s
        history, beats = self._board.history.copy(), self._board.beats.copy()
        self._changed[(history != self._history).any(axis=1)] = now
        self._alive[beats != self._beats] = now
        self._history, self._beats, self._at = history, beats, now

    def still_s(self) -> float:
        """For how long no rank has got on, as of the last look."""
        return self._at - float(self._changed.max())

    def quiet_s(self, rank: int) -> float:
        """For how long the rank has given no sign of life."""
        return self._at - float(self._alive[rank])
