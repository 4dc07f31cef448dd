"""A time limit on each check.

A file system, a driver or a rank that does not answer would block every rank forever, and no process interrupts its own
wait in the system. So a thread reports which check waits, and ends the process.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ringtrain.launch import texts

LIMIT_S = 120.0  # far more than any check takes, even if many ranks share the cores
LONGER_S = {"mpi_cuda": 240.0, "device": 240.0, "links": 240.0}  # a child opens a device; many nodes
HERE = str(Path(__file__).parent)


class Limit:
    """``give_up``: called by the thread with the message; it ends the process."""

    def __init__(self, give_up: Callable[[str], None], limit_s: float = LIMIT_S):
        self._give_up, self._limit_s = give_up, limit_s

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        seconds = max(self._limit_s, LONGER_S.get(name, 0.0))
        watched = threading.get_ident()
        timer = threading.Timer(seconds, lambda: self._give_up(_words(name, seconds, watched)))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _words(name: str, seconds: float, watched: int) -> str:
    return texts.TIMED_OUT(name=name.replace("_", " "), seconds=seconds, place=_place(watched))


def _place(thread: int) -> str:
    """The innermost function of a check in which this thread is."""
    frames = traceback.extract_stack(sys._current_frames()[thread])
    inner = next((frame for frame in reversed(frames) if frame.filename.startswith(HERE)), frames[-1])
    return f"{inner.name} ({Path(inner.filename).name}:{inner.lineno})"
