"""A reduction under a guard: its start and its end are written to the flight recorder."""

from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.errors import StalledError, TransportError
from ringtrain.transport.base import Handle

FIRST_LOOK_S = 1e-3  # a rank that has waited for so long compares with all ranks


class GuardedReduction(Reduction):
    """A handle under a :class:`~ringtrain.monitor.guard.Guard`.

    fingerprint: of the call
    word:        of the collective that is under way; 0 if none is
    enters:      whether its start calls a collective of the MPI
    """

    def __init__(self, guard, handle: Handle, fingerprint: int, word: int = 0, enters: bool = False):
        self._guard, self._recorder, self._handle, self._fingerprint = guard, guard.recorder, handle, fingerprint
        self.word, self._enters = word, enters
        self._started = bool(word)

    def announce(self) -> None:
        """Take its number now, in the one order of all collectives."""
        self.word = self._recorder.begin(self._fingerprint)
        self._started = False

    def start(self) -> None:
        word, self._started = self.word, True
        if not word:
            word = self.word = self._recorder.begin(self._fingerprint)
        if self._enters and self._recorder.next_rank_differs(word):
            self._guard.check(word)
        try:
            self._handle.start()
        except TransportError as error:
            raise self._guard.mismatch_or(word, error) from error

    def test(self) -> bool:
        word = self.word
        if not word:
            return True
        try:
            if not self._handle.test():
                return False
        except TransportError as error:
            raise self._guard.mismatch_or(word, error) from error
        self._end(word)
        return True

    def wait(self, deadline_s: float) -> None:
        word = self.word
        if not word:
            return
        try:
            self._handle.wait(FIRST_LOOK_S)
        except StalledError:
            self._guard.wait(self._handle, word, deadline_s)
        except TransportError as error:
            raise self._guard.mismatch_or(word, error) from error
        self._end(word)

    def _end(self, word: int) -> None:
        self.word = 0
        if not self._recorder.end(word):
            self._guard.check(word)

    def free(self) -> None:
        self._handle.free()

    @property
    def moved(self) -> int:
        return getattr(self._handle, "moved", 0) if self._started else 0
