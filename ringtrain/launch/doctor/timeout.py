"""A time limit on each check of the doctor.

A file system, a driver or a rank that does not answer would block every rank for ever, and a process cannot interrupt
its own wait in the system. So a thread reports the check that waits, and ends the process; where a library holds the
GIL, the deadline does.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ringtrain.errors import StalledError
from ringtrain.launch import texts
from ringtrain.transport.deadline import Deadline

LIMIT_S = 120.0  # far more than any check takes, even if many ranks share the cores
LONGER_S = {"mpi_cuda": 240.0, "device": 240.0, "links": 240.0}  # a child opens a device; many nodes
HERE = str(Path(__file__).parent)


class Limit:
    """A time limit on the current check. ``give_up(message)`` runs in the thread, and ends the process."""

    def __init__(self, give_up: Callable[[str], None], limit_s: float = LIMIT_S):
        self._give_up, self._limit_s = give_up, limit_s

    def __call__(self, name: str) -> Deadline:
        """The time limit of the check of this name."""
        seconds, watched = max(self._limit_s, LONGER_S.get(name, 0.0)), threading.get_ident()
        held = texts.TIMED_OUT(name=_spaced(name), seconds=seconds, place="a call that keeps the interpreter")
        report = partial(self._report, name, seconds, watched)
        return Deadline(seconds, StalledError.exit_code, held, first=report)

    def _report(self, name: str, seconds: float, watched: int) -> None:
        self._give_up(texts.TIMED_OUT(name=_spaced(name), seconds=seconds, place=_place(watched)))


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _place(thread: int) -> str:
    """The innermost function of a check in which this thread is."""
    frames = traceback.extract_stack(sys._current_frames()[thread])
    inner = next((frame for frame in reversed(frames) if frame.filename.startswith(HERE)), frames[-1])
    return f"{inner.name} ({Path(inner.filename).name}:{inner.lineno})"
