"""The interface of both screens, and plain lines for files, pipes and simple terminals: no control characters, at a
limited rate."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TextIO

from ringtrain.report.events import Iteration, RunStarted
from ringtrain.report.screen import words
from ringtrain.template import escaped

INTERVAL_S = 10.0


class Screen(ABC):
    """A place for the lines of a run."""

    @property
    def width(self) -> int | None:
        """Return the characters of a line; None if lines may have any length."""
        return None

    @abstractmethod
    def begin(self, run: RunStarted, header: Sequence[str]) -> None:
        """Show the header, one line of the screen for each of its lines, however narrow the terminal; progress will
        follow."""

    @abstractmethod
    def line(self, text: str) -> None:
        """Show a line that stays."""

    @abstractmethod
    def progress(self, event: Iteration) -> None:
        """Take note of a finished iteration; the screen decides whether to show it."""

    @abstractmethod
    def close(self) -> None:
        """Restore the terminal. A second call does nothing."""


class PlainScreen(Screen):
    """Show the first iteration, then one after each :data:`INTERVAL_S` by the events' own time stamps.

    A closed reader (``| head``) does not end the run: the screen shows nothing more, and the log has it all.
    """

    def __init__(self, stream: TextIO):
        self._stream: TextIO | None = stream
        self._next_s = 0.0
        self._run: RunStarted | None = None

    def begin(self, run: RunStarted, header: Sequence[str]) -> None:
        self._run = run
        for line in (*header, words.PREPARING):
            self.line(line)

    def line(self, text: str) -> None:
        if self._stream is None:
            return
        encoding = self._stream.encoding or "utf-8"  # a model's name may have characters outside it
        printable = escaped(text.replace("\n", " ")).encode(encoding, "replace").decode(encoding)
        try:
            self._stream.write(printable + "\n")
            self._stream.flush()
        except OSError:
            self._stream = None

    def progress(self, event: Iteration) -> None:
        if self._run is not None and event.seconds >= self._next_s:
            self._next_s = event.seconds + INTERVAL_S
            self.line(words.iteration(event, self._run))

    def close(self) -> None:
        """Do nothing: the stream is the caller's."""
