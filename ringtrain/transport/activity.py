"""What a rank is doing, for its threads and for other ranks to read: one attribute that the main thread sets as it
goes, and nobody waits for."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

DEADLINE_S = 300.0


class ActivityStage(NamedTuple):
    """text: in words, "backward"; since: by ``time.monotonic``; limited: whether it may not take longer than the
    deadline, whoever waits"""

    text: str
    since: float
    limited: bool


class NoHardTimeout:
    """What ends a process whose interpreter stands still: nothing. (:class:`.backstop.Backstop` does.)"""

    takes = False

    def arm(self, text: str, seconds: float) -> None:
        """From now on."""

    def disarm(self) -> None:
        """No longer."""


def no_words() -> str:
    return ""


def tell_none(error: Exception) -> None:
    pass


class Activity:
    """One rank's.

    iteration:    of the training, from 1; 0 before it
    layer():      where a pass is
    collective(): the one that this rank is in, in words
    everyone():   what all ranks do, in lines that each begin with a line break, where there is a guard that sees them
    lost():       who has died while others start, in words; empty where none has
    before_end(error): what a thread calls that is about to end the run
    deadline_s:   of stages that are limited
    backstop:     what ends the process where no thread of Python could (:class:`.backstop.Backstop`)
    """

    def __init__(self, deadline_s: float = DEADLINE_S):
        self.host = socket.gethostname()
        self.deadline_s, self.iteration = deadline_s, 0
        self.stage = ActivityStage("", time.monotonic(), False)
        self.layer: Callable[[], str] = no_words
        self.collective: Callable[[], str] = no_words
        self.everyone: Callable[[], str] = no_words
        self.lost: Callable[[], str] = no_words
        self.before_end: Callable[[Exception], None] = tell_none
        self.hard_timeout = NoHardTimeout()
        self.touches = 0  # how often a stage got on
        self._holds_gil = False

    def at(self, text: str) -> None:
        """The next stage begins, of which nobody knows how long it takes."""
        self.stage = ActivityStage(text, time.monotonic(), False)

    def limit(self, text: str) -> None:
        """The next stage begins, and may not take longer than the deadline."""
        self.stage = ActivityStage(text, time.monotonic(), True)

    @contextmanager
    def during(self, text: str, limited: bool = False) -> Iterator[None]:
        """A stage within another one. ``limited``: something that others answer, a file system above all."""
        before, holds_gil = self.stage, self._holds_gil
        self._begin(text, limited, False)
        try:
            yield
        finally:
            self._begin(before.text, before.limited, holds_gil, None if before.limited else before.since)

    @contextmanager
    def holds_gil(self, text: str) -> Iterator[None]:
        """A limited stage in a library that keeps the interpreter to itself while it waits: no thread of Python could
        tell that it takes too long. In the main thread."""
        with self.during(text, limited=True):
            self._begin(text, True, True)
            yield

    def _begin(self, text: str, limited: bool, holds_gil: bool, since: float | None = None) -> None:
        if self._holds_gil:
            self.hard_timeout.disarm()
        self.stage, self._holds_gil = (
            ActivityStage(text, time.monotonic() if since is None else since, limited),
            holds_gil,
        )
        if holds_gil:
            self.hard_timeout.arm(text, self.deadline_s)

    def touch(self) -> None:
        """A stage gets on: its time begins anew."""
        self.touches += 1
        self._begin(self.stage.text, self.stage.limited, self._holds_gil)

    def words(self) -> str:
        """ "backward, layer 'conv2'"; empty where nothing is known."""
        text, layer = self.stage.text, self.layer()
        return f"{text}, layer {layer!r}" if layer and text in PASSES else text


PASSES = ("forward", "backward")  # stages in which layer() is asked
