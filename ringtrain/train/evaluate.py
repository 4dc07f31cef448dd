"""Computes loss and accuracy on a split, with each example counted once, at any number of ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch, evaluation_batches
from ringtrain.data.split import Split
from ringtrain.nn.base import Pass
from ringtrain.nn.graph import Graph
from ringtrain.nn.losses import Loss
from ringtrain.nn.workspace import Workspace
from ringtrain.ops.base import Ops
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.loss_sum import in_order
from ringtrain.train.step.partition import blank_batch
from ringtrain.train.stopping.signals import StopPoll
from ringtrain.transport.base import Transport


class EvaluationStopped(Exception):
    """A rank has to stop."""


EVALUATION_BATCH = 128  # examples a rank, at a time


def crop_of(graph: Graph) -> tuple[int, int]:
    """(height, width) of the network's input."""
    height, width, *_ = graph.input_shape
    return height, width


@dataclass(frozen=True, slots=True)
class Score:
    """loss: mean over labelled examples; accuracy: fraction of them; examples: their number."""

    loss: float
    accuracy: float
    examples: int


class Evaluator:
    """Scores the weights of a graph. Sums are float64, so that counts are exact. ``ranks``: those that hold the whole
    graph, and compute; all unless given."""

    def __init__(
        self,
        ops: Ops,
        space: Workspace,
        graph: Graph,
        loss: Loss,
        feed: DeviceInput,
        transport: Transport,
        deadline_s: float,
        stop_requested: Callable[[], bool] = lambda: False,
        ranks: Sequence[int] | None = None,
    ):
        self._ranks = tuple(range(transport.size)) if ranks is None else tuple(ranks)
        self._place = self._ranks.index(transport.rank) if transport.rank in self._ranks else None
        self._deadline_s, self._stop_requested = deadline_s, stop_requested
        self._ops, self._graph, self._loss, self._feed, self._transport = ops, graph, loss, feed, transport
        self._ctx = Pass(ops, space, training=False, recorded=True)

    def score(self, split: Split, batch: int, grain: int = 1) -> Score | None:
        """Score a split; None if no example has a label. Raises EvaluationStopped, on every rank, if one has to stop.
        Collective.

        batch: examples at a time, over all ranks; grain: those that stay together

        Each rank's parts have rows of their own, zeros elsewhere, so that the sum over ranks is exact; rows are then
        added in the order of their examples. With a grain of batch/ranks the score has the same bits at any number of
        ranks.
        """
        place, size = self._place, len(self._ranks)
        own = self._rows(split, batch)
        stop = StopPoll(self._transport, self._stop_requested, self._deadline_s)
        self._ops.fill(own, 0)
        with evaluation_batches(split, batch, place, size, grain, crop_of(self._graph)) as batches:
            for part in batches:
                if len(part.labels):
                    self._add(part, own[3 * part.iteration : 3 * part.iteration + 3])
                if stop():
                    stop.answer()
                    raise EvaluationStopped
        stop.answer()
        rows = np.zeros((own.size // 3, size, 3))
        if place is not None:
            rows[:, place] = self._ops.to_host(own).reshape(-1, 3)
        self._transport.native_allreduce_start(rows.reshape(-1)).wait(self._deadline_s)
        loss, correct, valid = in_order(rows.reshape(-1, 3))
        return Score(loss / valid, correct / valid, int(valid)) if valid else None

    def _rows(self, split: Split, batch: int) -> Array:
        """The memory for (loss, correct, valid) of each of this rank's parts."""
        return self._ctx.space("scores", (3 * -(-split.count // batch),), "float64")

    def rehearse(self, like: Batch, split: Split, batch: int) -> None:
        """Run every kernel of :meth:`score` on as many examples of zeros, on a rank that computes."""
        if self._place is not None:
            self._add(blank_batch(like, batch // len(self._ranks)), self._rows(split, batch)[:3])

    def _add(self, part: Batch, totals: Array) -> None:
        x, labels, self._ctx.examples = self._feed.load(self._ctx.space, part, 0, len(part.labels))
        logits, _ = self._graph.forward(self._ctx, x)
        self._loss.forward(self._ctx, logits, labels, totals)
