"""The interface of a rank that holds a part of the network."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.nn.base import Pass


@dataclass(frozen=True, slots=True)
class StageIteration:
    """An iteration for a stage: this rank's part of the batch, and its micro-batches (start, stop).

    ctx:         keys of random numbers, and the number of examples on all ranks
    totals:      (loss, correct, valid), to which the stage adds
    denominator: the loss's
    """

    batch: Batch
    micro: list[tuple[int, int]]
    ctx: Pass
    totals: Array
    denominator: float


class PipelineStage(ABC):
    """The instructions for forward and backward of an iteration, and their execution."""

    @abstractmethod
    def begin(self, iteration: StageIteration) -> None: ...

    @abstractmethod
    def instructions(self, micro_batches: int) -> tuple:
        """An iteration of this rank, whose part has this number of micro-batches."""

    @abstractmethod
    def run(self, instruction: object) -> None: ...

    @abstractmethod
    def rehearse(self) -> None:
        """Run every kernel of an iteration that the rehearsal of the whole network does not run."""
