"""Ctrl-C, SIGTERM and a scheduler's SIGUSR1: note them, and let the loop stop where all ranks can."""

import signal
from collections.abc import Callable

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopFlag:
    """Set by the first stopping signal. The second Ctrl-C is Python's own again: it ends the process at once.

    ``in_haste`` is called by the handler of SIGINT and SIGTERM: what follows those may be soon. (SIGUSR1 is a request.)
    """

    def __init__(self):
        self._name = None
        self.in_haste: Callable[[], None] = nothing
        self._before = {}

    def install(self) -> "StopFlag":
        for number in STOPPING:
            self._before[number] = signal.signal(number, self._note)
        return self

    def remove(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number, frame) -> None:
        self._name = signal.Signals(number).name
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if number != signal.SIGUSR1:
            self.in_haste()

    @property
    def ending(self) -> bool:
        """Whether a launcher, or a user, is about to end the process."""
        return self._name is not None and self._name != "SIGUSR1"

    def __call__(self) -> bool:
        return self._name is not None


def nothing() -> None:
    pass
