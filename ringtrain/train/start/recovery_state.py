"""A run's way through several worlds: what of it outlives the death of a rank (``--elastic``)."""

import time
from dataclasses import dataclass, field, replace

from ringtrain.config.record import TrainConfig
from ringtrain.config.resolve import resolve
from ringtrain.errors import ConfigError, RingtrainError
from ringtrain.report.events import RanksLost
from ringtrain.train import texts
from ringtrain.train.checkpoints.outcome_file import OutcomeWriter
from ringtrain.train.checkpoints.resume import Origin, own_layers
from ringtrain.train.checkpoints.saving import RecoverableState
from ringtrain.train.run.run import Run
from ringtrain.transport.base import Transport

SHRINK, REPLACE = "shrink", "replace"
MEMORY, CHECKPOINT, ANEW = "memory", "checkpoint", "anew"  # where a run goes on after a death


@dataclass(slots=True)
class RecoveryState:
    """started:  when this process began, by ``time.perf_counter``
    folder:   of the run, once there is one
    training: once there is one: what a survivor may go on from
    salvage:  what it has kept of the last world's, until there is training in this one
    ending:   of this world, once there is a folder
    iterations: of the run, once that is known
    lost:     ranks, each by its number in the world that lost it
    told:     how many of these were told of
    origin:   where the run goes on in this world, until that is taken up; None: as flags say
    news:     what is to be told of the death that ended the last world
    lost_at:  when that was met: later than it came, by what the MPI needs to see it
    """

    started: float = field(default_factory=time.perf_counter)
    folder: str | None = None
    training: Run | None = None
    salvage: RecoverableState | None = None
    ending: OutcomeWriter | None = None
    iterations: int = 0
    lost: tuple[int, ...] = ()
    told: int = 0
    origin: Origin | None = None
    news: RanksLost | None = None
    lost_at: float = 0.0

    def adapted(self, config: TrainConfig) -> TrainConfig:
        """After a death no trace is written: its iterations, or some of its ranks, are gone."""
        return replace(config, trace=None, trace_iterations=None) if self.lost else config

    def begin(self, training: Run) -> None:
        """What was kept of the last world is in this one."""
        self.training, self.salvage = training, None

    def end(self) -> None:
        """The run is done. Its last checkpoint is what is gone on from where a rank dies in what is left to do, which
        takes the run's own state apart."""
        self.training = None
        self.ending.done()

    @property
    def unsaved(self) -> bool:
        """Whether what this world goes on from is nowhere but in memory: one that is told to stop then trains until it
        has saved that. The same on all ranks, until the news are told."""
        return self.news is not None and self.news.source == MEMORY

    def keep(self) -> None:
        """This world is left."""
        if self.training is not None:
            self.salvage, self.training = self.training.salvage(), None

    def take_news(self) -> RanksLost | None:
        """To be told when all is ready to go on."""
        news, self.news, self.told = self.news, None, len(self.lost)
        return news and replace(news, seconds=time.perf_counter() - self.lost_at)


def wanted(run_file: str | None, flags: dict) -> str | None:
    """What ``--elastic`` says: known before ranks do anything together, in which one may die. None, too, where it
    cannot be read: all of them find that out together, when they open the run."""
    try:
        return resolve(*own_layers(run_file, flags)).elastic
    except RingtrainError:
        return None


def check_elastic(config: TrainConfig, transport: Transport, alone: bool) -> None:
    """Raises ConfigError where the death of a rank cannot be survived. ``alone``: the run is the only one of this
    process."""
    if config.elastic is None:
        return
    if transport.why_not_fault_tolerant:
        raise ConfigError(texts.NOT_ELASTIC(elastic=config.elastic, why=transport.why_not_fault_tolerant))
    if not alone:
        raise ConfigError(
            f"--elastic {config.elastic} is of `ringtrain train`: in a comparison runs must be alike, so leave it out"
        )


def for_devices(config: TrainConfig) -> TrainConfig:
    """With ``--elastic``, device memory goes by way of host memory."""
    if config.elastic is not None and config.device == "cuda":
        return replace(config, mpi_cuda="staged")
    return config
