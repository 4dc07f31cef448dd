"""The stage that a rank is in, for its threads and for other ranks to read: one attribute, which the main thread sets
and no thread waits for."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

DEADLINE_S = 300.0


class ActivityStage(NamedTuple):
    """text: in words, "backward"; since: by ``time.monotonic``; limited: whether it may not take longer than the
    deadline"""

    text: str
    since: float
    limited: bool


class NoHardTimeout:
    """No limit on stages that hold the GIL; :class:`.hang_detector.HardTimeout` is one."""

    takes = False

    def arm(self, text: str, seconds: float) -> None:
        """End the process after so many seconds."""

    def disarm(self) -> None:
        """Do not end it."""


def no_words() -> str:
    return ""


def tell_none(error: Exception) -> None:
    pass


class Activity:
    """The activity of one rank.

    iteration:    of training, from 1; 0 before it
    layer():      the layer of the pass
    collective(): the collective that this rank is in, in words
    everyone():   lines with the stages of all ranks, if there is a guard
    before_end(error): a thread calls this before it ends the run
    deadline_s:   of limited stages
    hard_timeout: ends the process if a stage holds the GIL for too long
    touches:      how often a stage has made progress
    shown:        whether a guard has shown the stacks of this rank, which the others wait for
    """

    def __init__(self, deadline_s: float = DEADLINE_S):
        self.host = socket.gethostname()
        self.deadline_s, self.iteration = deadline_s, 0
        self.stage = ActivityStage("", time.monotonic(), False)
        self.layer: Callable[[], str] = no_words
        self.collective: Callable[[], str] = no_words
        self.everyone: Callable[[], Sequence[str]] = no_words
        self.before_end: Callable[[Exception], None] = tell_none
        self.hard_timeout = NoHardTimeout()
        self.touches, self.shown = 0, False
        self._holds_gil = False

    def at(self, text: str) -> None:
        """Begin the next stage, which may take any time."""
        self.stage = ActivityStage(text, time.monotonic(), False)

    def limit(self, text: str) -> None:
        """Begin the next stage, which may not take longer than the deadline."""
        self.stage = ActivityStage(text, time.monotonic(), True)

    @contextmanager
    def during(self, text: str, limited: bool = False) -> Iterator[None]:
        """A stage within another one. ``limited``: another party, such as a file system, answers it."""
        before, held_gil = self.stage, self._holds_gil
        self._begin(text, limited, False)
        try:
            yield
        finally:
            self._begin(before.text, before.limited, held_gil, None if before.limited else before.since)

    @contextmanager
    def holds_gil(self, text: str) -> Iterator[None]:
        """A limited stage in a library that holds the GIL while it waits, so that no thread of Python could report it.
        For the main thread."""
        with self.during(text, limited=True):
            self._begin(text, True, True)
            yield

    def _begin(self, text: str, limited: bool, holds_gil: bool, since: float | None = None) -> None:
        if self._holds_gil:
            self.hard_timeout.disarm()
        self.stage = ActivityStage(text, time.monotonic() if since is None else since, limited)
        self._holds_gil = holds_gil
        if holds_gil:
            self.hard_timeout.arm(text, self.deadline_s)

    def touch(self) -> None:
        """Note that the stage makes progress: its time begins anew."""
        self.touches += 1
        self._begin(self.stage.text, self.stage.limited, self._holds_gil)

    def words(self) -> str:
        """The stage in words, "backward, layer 'conv2'"; empty before the first."""
        text, layer = self.stage.text, self.layer()
        return f"{text}, layer {layer!r}" if layer and text in PASSES else text


PASSES = ("forward", "backward")  # stages in which layer() is asked
EXCHANGE = "the exchange of gradients"  # a stage in which a rank may wait for others
