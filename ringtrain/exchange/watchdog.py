"""A thread that watches whether ranks get on. It asks for progress, not for life: a rank that is alive and waits for
ever is as stuck as one that is gone."""

import threading
import time
from collections.abc import Callable

import numpy as np

from ringtrain.exchange.pauses import Pauses
from ringtrain.transport.board import Board

EVERY_S = 0.25  # between two looks
LOOKS = 4  # at least so many in a deadline


class Watchdog:
    """Looks at the board again and again, in a thread of its own, and keeps when each rank last changed there.

    look: called after each look; the thread ends when it says True
    """

    def __init__(self, board: Board, deadline_s: float, look: Callable[[], bool], clock=time.monotonic):
        self.every_s = min(EVERY_S, deadline_s / LOOKS)
        self._board, self._look, self._clock = board, look, clock
        self._history, self._beats = board.history.copy(), board.beats.copy()
        self._at = clock()
        self._pauses = Pauses(self.every_s, self._at)
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
