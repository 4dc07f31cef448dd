"""A thread that lets what is under way get on while the loop computes.

An MPI makes progress when it is asked. Between two layers the loop asks; where a layer takes longer than the network's
buffers last, the network waits for it. The thread asks all the time, and takes some of the core's for that.
"""

import threading
import time
from collections.abc import Callable

from ringtrain.errors import RingtrainError
from ringtrain.exchange.beside import Beside
from ringtrain.transport.base import Transport

EVERY_S = 500e-6
IDLE_S = 50e-3  # how soon it sees that the process is about to end
LAYERS, THREAD = "layers", "thread"


class Pacer:
    """``turn`` is held by whoever touches a flight: nothing in it is made for two threads at once.

    every_s: seconds between two looks
    """

    def __init__(self, every_s: float = EVERY_S):
        self.turn = threading.Lock()
        self._every_s = every_s
        self._steps: list[Callable[[], bool]] = []
        self._under_way = threading.Event()
        self._ended, self._error = False, None
        # No daemon: it ends with the main thread, before the MPI does.
        self._thread = threading.Thread(target=self._run, name="pacer")

    def drive(self, step: Callable[[], bool]) -> None:
        """Call ``step()`` again and again from now on: it lets something get on, and says whether there is more."""
        self._steps.append(step)
        if len(self._steps) == 1:
            self._thread.start()

    def wake(self) -> None:
        """Something is under way. With ``turn``."""
        self._under_way.set()

    def check(self) -> None:
        """Raises what the thread met. With ``turn``."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self._ended = True
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended and self._error is None and threading.main_thread().is_alive():
            if self._under_way.wait(IDLE_S):
                time.sleep(self._every_s)
                with self.turn:
                    self.look()

    def look(self) -> None:
        """One look at everything. With ``turn``."""
        try:
            more = [step() for step in self._steps]  # all of them, whatever the first says
            if not any(more):
                self._under_way.clear()
        except RingtrainError as error:
            self._error = error


def make_pacer(progress: str, transport: Transport, orders: Beside) -> tuple[Pacer | None, str | None]:
    """The thread that ``progress`` asks for, or None; and a sentence where it asks for one that cannot be had."""
    if progress == LAYERS or transport.size == 1:
        return None, None
    if orders.is_device:
        return None, (
            "--progress thread is layers here: while a device computes, the loop that waits for it lets messages get "
            "on all the time"
        )
    if transport.threads:
        pacer = Pacer()
        transport.leaving.append(pacer.end)
        return pacer, None
    return None, "--progress thread is layers here: this transport takes calls of one thread at a time"
