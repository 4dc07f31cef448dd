"""What may tell a rank to stop, noted, so that the loop stops where all ranks can: Ctrl-C, SIGTERM, a scheduler's
SIGUSR1, and the end of the job that the run is in."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def nothing() -> None:
    pass


class StopFlag:
    """Set by the first stopping signal, or by what ``other()`` says. The second Ctrl-C is Python's own again: it ends
    the process at once; any other second signal is no more than the first.

    ``in_haste`` is called by the handler of SIGINT and SIGTERM: what follows those may be soon. (SIGUSR1 is a request.)
    ``other()``: another reason to stop, in words; None where there is none.
    """

    def __init__(self):
        self._why: str | None = None
        self.ending = False  # whether a launcher, or a user, is about to end the process
        self.in_haste: Callable[[], None] = nothing
        self.other: Callable[[], str | None] = nothing
        self._before = {}

    def install(self) -> "StopFlag":
        for number in STOPPING:
            self._before[number] = signal.signal(number, self._note)
        return self

    def remove(self, last: bool = False) -> None:
        """Signals do what they did before. ``last``: the process is about to end; then a SIGUSR1 that comes late, which
        would kill, is passed over: whoever sends it wants the end that is coming."""
        for number, handler in self._before.items():
            late = last and number == signal.SIGUSR1 and handler == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if late else handler)
        self._before.clear()

    def _note(self, number, frame) -> None:
        self._why = self._why or f"by {signal.Signals(number).name}"
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if number != signal.SIGUSR1:
            self.ending = True
            self.in_haste()

    def __call__(self) -> bool:
        return self.why() is not None

    def why(self) -> str | None:
        """What told this rank to stop: "by SIGUSR1"; None where nothing has."""
        self._why = self._why or self.other()
        return self._why


@contextmanager
def watching(last: bool = False) -> Iterator[StopFlag]:
    """Signals are noted, in place of what they do otherwise. ``last``: see :meth:`StopFlag.remove`."""
    stop = StopFlag().install()
    try:
        yield stop
    finally:
        stop.remove(last)
