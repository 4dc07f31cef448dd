"""Keeps the state of a run that outlives a world in which a rank dies (``--elastic``)."""

import time
from dataclasses import dataclass, field, replace

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.record import TrainConfig
from ringtrain.errors import ConfigError
from ringtrain.report.events import RanksLost
from ringtrain.train.checkpoints.outcome_file import OutcomeWriter
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.checkpoints.saving import RecoverableState
from ringtrain.train.run.run import Run
from ringtrain.transport.base import Transport

SHRINK, REPLACE = "shrink", "replace"
MEMORY, CHECKPOINT, ANEW = "memory", "checkpoint", "anew"  # where a run goes on after a death


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

    def adapted(self, config: TrainConfig) -> TrainConfig:
        """The configuration for this world: after a death without a trace, whose iterations or ranks are gone."""
        return config.changed(trace=None) if self.lost else config

    def begin(self, training: Run) -> None:
        """Begin training in this world, in place of the state from the last one."""
        self.training, self.recoverable = training, None

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
