"""The interface of both screens: a live display and plain lines."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ringtrain.report.events import Iteration, RunStarted


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
