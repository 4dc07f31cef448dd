"""Keeps the state of a run that outlives a world in which a rank dies (``--elastic``), and writes its outcome."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.record import TrainConfig
from ringtrain.errors import ConfigError, RingtrainError
from ringtrain.report.events import RanksLost
from ringtrain.storage.run_folder import outcome
from ringtrain.storage.run_folder.outcome import DONE, FAILED, RUNNING, WORDS, RunOutcome
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.checkpoints.state import Progress
from ringtrain.train.run.run import RecoverableState, Run
from ringtrain.train.stopping.signals import INTERRUPTED_AGAIN
from ringtrain.transport.base import Transport

REPLACE = "replace"
MEMORY, CHECKPOINT, ANEW = "memory", "checkpoint", "anew"  # where a run goes on after a death
WRITTEN_S = 10.0  # the end of a run waits no longer for a file system, which may be its error


class OutcomeWriter:
    """Writes the outcome of a run for scripts, ``outcome.json``, at its start and at its end. Every rank has a writer:
    it writes an error of its own that the others do not know.

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
            if isinstance(error, RingtrainError):
                text, code = str(error), error.exit_code
            else:
                text = f"{type(error).__name__}: {error}"
                code = INTERRUPTED_AGAIN if isinstance(error, KeyboardInterrupt) else 1
            self._write(WORDS.get(code, FAILED), code, self.progress.iteration, text)

    def _write(self, word: str, code: int | None, iteration: int, text: str = "") -> None:
        written = RunOutcome(word, code, iteration, self._iterations, self._ranks, self._lost, text)
        outcome.write_outcome(self._folder, written)


@dataclass(slots=True)
class RecoveryState:
    """started:     the start of this process, by ``time.perf_counter``
    folder:      the run folder, once it exists
    training:    the run of this world, once it has begun; a survivor may go on from its state
    recoverable: the state that this rank kept from the last world, until training begins in this one
    outcome:     the writer of this world's outcome file, once the folder exists
    iterations:  the length of the run, once it is known
    lost:        the lost ranks, each by its number in the world that lost it
    reported:    the number of them in the log
    origin:      the start of the run in this world, until it is restored; None: the start in the options
    ranks_lost:  the report of the death that ended the last world, until :meth:`take_report`
    lost_at:     the time at which this rank saw that death
    """

    started: float = field(default_factory=time.perf_counter)
    folder: str | None = None
    training: Run | None = None
    recoverable: RecoverableState | None = None
    outcome: OutcomeWriter | None = None
    iterations: int = 0
    lost: tuple[int, ...] = ()
    reported: int = 0
    origin: Origin | None = None
    ranks_lost: RanksLost | None = None
    lost_at: float = 0.0

    def end(self) -> None:
        """End training. After a later death survivors go on from the last checkpoint, since closing ends the run's own
        state."""
        self.training = None
        if self.outcome is not None:
            self.outcome.done()

    def keep(self) -> None:
        """Keep the state of the run, and drop the run: this rank leaves its world."""
        if self.training is not None:
            self.recoverable, self.training = self.training.recoverable(), None

    def record_failure(self, error: BaseException) -> None:
        """Write the error to the outcome file, if there is one."""
        if self.outcome is not None:
            self.outcome.failed(error)

    @property
    def unsaved(self) -> bool:
        """Whether this world's state is in memory alone: a run that has to stop then trains until it has saved it. The
        same on all ranks, until :meth:`take_report`."""
        return self.ranks_lost is not None and self.ranks_lost.source == MEMORY

    def take_report(self) -> RanksLost | None:
        """The report of the last death, once, when the run is ready to go on."""
        report, self.ranks_lost, self.reported = self.ranks_lost, None, len(self.lost)
        return replace(report, seconds=time.perf_counter() - self.lost_at) if report else None


def check_elastic(config: ExchangeConfig, transport: Transport, only_run: bool) -> None:
    """Raise ConfigError if ranks cannot survive a death. ``only_run``: whether this process makes no other run."""
    if config.elastic is None:
        return
    if transport.why_not_fault_tolerant:
        raise ConfigError(f"--elastic {config.elastic}: {transport.why_not_fault_tolerant}; or leave --elastic out")
    if not only_run:
        raise ConfigError(f"--elastic {config.elastic}: runs of a comparison must be alike: leave --elastic out")


def for_devices(config: TrainConfig) -> TrainConfig:
    """The same configuration; with ``--elastic`` device memory goes by way of host memory."""
    if config.exchange.elastic is not None and config.device.device == "cuda":
        return config.changed(mpi_cuda="staged")
    return config
