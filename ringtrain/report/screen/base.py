"""The interface of a screen: a live display and plain lines both follow it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ringtrain.report.events import (
    Iteration,
    RunStarted,
)


class Screen(ABC):
    """``width``: of a line, in characters; None where it may be of any length."""

    width: int | None = None

    @abstractmethod
    def begin(self, run: RunStarted, header: Sequence[str]) -> None:
        """Show the header, each line in one line however narrow the terminal; progress will follow."""

    @abstractmethod
    def line(self, text: str) -> None:
        """Show a line that stays."""

    @abstractmethod
    def progress(self, event: Iteration) -> None:
        """An iteration is finished: show it or not."""

    @abstractmethod
    def close(self) -> None:
        """Leave the terminal as it was found. May be called more than once."""
