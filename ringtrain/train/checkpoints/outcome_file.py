"""Writes the outcome of a run for scripts, ``outcome.json``, at its start and at its end."""

import threading
from contextlib import suppress
from pathlib import Path

from ringtrain.errors import RingtrainError
from ringtrain.storage.run_folder import outcome
from ringtrain.storage.run_folder.outcome import DONE, FAILED, RUNNING, WORDS, RunOutcome
from ringtrain.train.checkpoints.state import Progress
from ringtrain.train.stopping.signals import INTERRUPTED_AGAIN

WRITTEN_S = 10.0  # the end of a run waits no longer for a file system, which may be its error


class OutcomeWriter:
    """Writes the outcome of a run. Every rank has a writer: it writes an error of its own that the others do not know.

    writes: whether this rank writes the outcome of all ranks
    """

    def __init__(self, folder: Path, writes: bool, iterations: int, ranks: int, lost: tuple[int, ...] = ()):
        self._folder, self._writes = folder, writes
        self._iterations, self._ranks, self._lost = iterations, ranks, lost
        self.progress = Progress()
        self._final, self._writing = False, threading.Thread()

    def running(self, iteration: int) -> None:
        """Write that the run goes on. Raises RingtrainError, UsageError if the file cannot be written."""
        self._write(RUNNING, None, iteration)

    def done(self) -> None:
        """Write that the run is done. A later error does not change that."""
        if self._writes:
            self._write(DONE, 0, self.progress.iteration)
        self._final = True

    def failed(self, error: BaseException) -> None:
        """Write the error, a second Ctrl-C or a defect of ringtrain as the end, if the folder can be written."""
        if not self._final and (self._writes or not (isinstance(error, RingtrainError) and error.everywhere)):
            self._writing = threading.Thread(target=self._write_failure, args=(error,), name="outcome", daemon=True)
            self._writing.start()
        self._final = True
        if self._writing.ident is not None:  # a Ctrl-C may come during the write
            self._writing.join(WRITTEN_S)

    def _write_failure(self, error: BaseException) -> None:
        with suppress(RingtrainError):
            text = str(error) if isinstance(error, RingtrainError) else f"{type(error).__name__}: {error}"
            self._write(*_known(error), self.progress.iteration, text)

    def _write(self, word: str, code: int | None, iteration: int, text: str = "") -> None:
        written = RunOutcome(word, code, iteration, self._iterations, self._ranks, self._lost, text)
        outcome.write_outcome(self._folder, written)


def _known(error: BaseException) -> tuple[str, int]:
    """(word, exit code)"""
    if isinstance(error, KeyboardInterrupt):
        return WORDS[INTERRUPTED_AGAIN], INTERRUPTED_AGAIN
    code = error.exit_code if isinstance(error, RingtrainError) else 1
    return WORDS.get(code, FAILED), code
