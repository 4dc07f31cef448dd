"""The interface of an iteration where ranks hold parts of the network; the worker knows no more of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ringtrain.data.batches.batches import Batch
from ringtrain.nn.base import Pass


@dataclass(frozen=True, slots=True)
class StageIteration:
    """An iteration for a stage: this rank's part of the batch, and its micro-batches (start, stop).

    ctx:         keys of random numbers, and the examples of all ranks
    totals:      loss sum, correct and valid, to be added to
    denominator: the loss's
    """

    batch: Batch
    micro: list[tuple[int, int]]
    ctx: Pass
    totals: object
    denominator: float


class PipelineStage(ABC):
    """Instructions of its own for the forward and backward part of an iteration, and how they are run: see
    :mod:`ringtrain.train.pipeline.front_stage`."""

    @abstractmethod
    def begin(self, round: StageIteration) -> None: ...

    @abstractmethod
    def instructions(self, micro_batches: int) -> tuple:
        """An iteration of this rank, whose share is cut into so many micro-batches."""

    @abstractmethod
    def run(self, instruction) -> None: ...

    @abstractmethod
    def rehearse(self) -> None:
        """Run every kernel of an iteration that the whole network's do not cover."""
