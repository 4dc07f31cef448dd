"""Writes the state of a run for scripts, in ``outcome.json``, at its start and at its end."""

import threading
from contextlib import suppress
from pathlib import Path

from ringtrain.errors import RingtrainError
from ringtrain.storage.run_folder import outcome
from ringtrain.storage.run_folder.outcome import DONE, FAILED, RUNNING, WORDS, RunOutcome
from ringtrain.train.checkpoints.state import Progress
from ringtrain.train.stopping.signals import INTERRUPTED_AGAIN

WRITTEN_S = 10.0  # a file system that takes longer may be the very error, and does not keep the run from its end


class OutcomeWriter:
    """Every rank has one: an error of one rank alone is written by that rank, since others do not know of it.

    folder: of the run
    writes: whether this rank writes the outcome of all ranks
    """

    def __init__(self, folder: Path, writes: bool, iterations: int, ranks: int, lost: tuple[int, ...] = ()):
        self._folder, self._writes = folder, writes
        self._iterations, self._ranks, self._lost = iterations, ranks, lost
        self.progress = Progress()
        self._told, self._writing = False, threading.Thread()

    def running(self, iteration: int) -> None:
        """Raises: RingtrainError, UsageError where that cannot be written."""
        self._write(RUNNING, None, iteration)

    def done(self) -> None:
        """Whatever goes wrong after that, all that the run was to make is there."""
        if self._writes:
            self._write(DONE, 0, self.progress.iteration)
        self._told = True

    def failed(self, error: BaseException) -> None:
        """By an error of ours, a second Ctrl-C, or a defect. A folder that cannot be written may be the very error."""
        if not self._told and (self._writes or not (isinstance(error, RingtrainError) and error.everywhere)):
            self._writing = threading.Thread(target=self._write_failure, args=(error,), name="outcome", daemon=True)
            self._writing.start()
        self._told = True
        if self._writing.ident is not None:  # a Ctrl-C may come while this is being written
            self._writing.join(WRITTEN_S)

    def _write_failure(self, error: BaseException) -> None:
        with suppress(RingtrainError):
            self._write(*_known(error), self.progress.iteration, _text(error))

    def _write(self, word: str, code: int | None, iteration: int, text: str = "") -> None:
        told = RunOutcome(word, code, iteration, self._iterations, self._ranks, self._lost, text)
        outcome.write_outcome(self._folder, told)


def _known(error: BaseException) -> tuple[str, int]:
    """(word, exit code)"""
    if isinstance(error, KeyboardInterrupt):
        return WORDS[INTERRUPTED_AGAIN], INTERRUPTED_AGAIN
    code = error.exit_code if isinstance(error, RingtrainError) else 1
    return WORDS.get(code, FAILED), code


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, RingtrainError) else f"{type(error).__name__}: {error}"
