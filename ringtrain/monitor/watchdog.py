"""A thread that watches the progress of ranks. A sign of life is not enough: a rank that lives and waits for ever is as
stuck as a dead one."""

import os
import sys
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
    """Reads the flight recorder every ``every_s`` seconds, and keeps the time of each rank's last change. Those of all
    groups of a rank look in one thread.

    look: look() runs after each reading; the last that does returns True
    """

    def __init__(self, recorder: FlightRecorder, deadline_s: float, look: Callable[[], bool], clock=time.monotonic):
        self.every_s = min(EVERY_S, deadline_s / LOOKS)
        self._recorder, self._look, self._clock = recorder, look, clock
        self._history, self._beats = recorder.history.copy(), recorder.beats.copy()
        self._at = clock()
        self._pauses = SuspendDetector(self.every_s, self._at)
        self._changed, self._alive = np.full(recorder.size, self._at), np.full(recorder.size, self._at)
        self._ended, self._looking = False, threading.RLock()
        self._due = 0.0  # when to look next, by time.monotonic

    def start(self) -> None:
        key = os.getpid(), self._recorder.world_rank  # ranks may be threads
        with _woken:
            self._due = time.monotonic() + self.every_s
            if key not in _watching:
                _watching[key] = []
                name = f"watchdog of rank {self._recorder.world_rank}"
                threading.Thread(target=_look_in_turn, args=[key], name=name, daemon=True).start()
            _watching[key].append(self)
            _woken.notify_all()

    def end(self) -> None:
        """Look no more; a look under way is waited for."""
        with self._looking:
            self._ended = True
        with _woken:
            _woken.notify_all()

    def _look_once(self) -> None:
        with self._looking:
            if not self._ended:
                self.note()
                self._ended = self._look() or self._ended  # a look may call end()
                self._due = time.monotonic() + self.every_s

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


_woken = threading.Condition()
_watching: dict[tuple[int, int], list[Watchdog]] = {}  # those of a process and a rank


def _look_in_turn(key: tuple[int, int]) -> None:
    """Let each watchdog look when it is due, until all have ended."""
    while (watchdog := _next_due(key)) is not None:
        try:
            watchdog._look_once()
        except BaseException:  # SystemExit too: the others look on
            watchdog._ended = True
            threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))


def _next_due(key: tuple[int, int]) -> Watchdog | None:
    """Wait until a watchdog is due, and return it; None if all have ended."""
    with _woken:
        while watchdogs := [each for each in _watching[key] if not each._ended]:
            _watching[key], first = watchdogs, min(watchdogs, key=lambda each: each._due)
            if (left_s := first._due - time.monotonic()) <= 0:
                return first
            _woken.wait(left_s)
        del _watching[key]
    return None
