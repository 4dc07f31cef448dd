"""Loss and accuracy on a split: each example counted once, at any number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ringtrain.data.batches.batches import Batch, evaluation_batches
from ringtrain.data.file.dataset import Split
from ringtrain.nn.base import Pass, Workspace
from ringtrain.nn.graph import Graph
from ringtrain.nn.loss import SoftmaxCrossEntropy
from ringtrain.ops.base import Ops
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.loss_sum import in_order
from ringtrain.train.step.partition import PER_EXAMPLE
from ringtrain.train.stopping.signals import StopPoll, never
from ringtrain.transport.base import Transport


class EvaluationStopped(Exception):
    """A rank has to stop."""


EVALUATION_BATCH = 128  # examples a rank, at a time


@dataclass(frozen=True, slots=True)
class Score:
    """loss: mean over labelled examples; accuracy: fraction of them; examples: how many of those there were."""

    loss: float
    accuracy: float
    examples: int


class Evaluator:
    """Scores the weights that the graph is bound to; collective. Sums travel in float64, so that the count is exact."""

    def __init__(
        self,
        ops: Ops,
        space: Workspace,
        graph: Graph,
        loss: SoftmaxCrossEntropy,
        feed: DeviceInput,
        transport: Transport,
        deadline_s: float,
        stop_requested: Callable[[], bool] = never,
    ):
        self._deadline_s, self._told_to_stop = deadline_s, stop_requested
        self._ops, self._graph, self._loss, self._feed, self._transport = ops, graph, loss, feed, transport
        self._ctx = Pass(ops, space, training=False, recorded=True)

    def score(self, split: Split, batch: int, grain: int = 1) -> Score | None:
        """``batch``: examples at a time, over all ranks; ``grain``: those that stay together. None where no example has
        a label. Raises BrokenOff, on every rank, where one was told to stop.

        Each rank's parts have rows of their own, zeros elsewhere, so that the sum over ranks is exact; rows are then
        added in the order of their examples. With a grain of batch/ranks the score has the same bits at any number of
        ranks.
        """
        rank, size = self._transport.rank, self._transport.size
        crop, own = self._graph.input_shape[:2], self._rows(split, batch)
        stop = StopPoll(self._transport, self._told_to_stop, self._deadline_s)
        self._ops.fill(own, 0)
        with evaluation_batches(split, batch, rank, size, grain, crop) as batches:
            for part in batches:
                if len(part.labels):
                    self._add(part, own[3 * part.iteration : 3 * part.iteration + 3])
                if stop():
                    stop.answer()
                    raise EvaluationStopped
        stop.answer()
        rows = np.zeros((own.size // 3, size, 3))
        rows[:, rank] = self._ops.to_host(own).reshape(-1, 3)
        self._transport.native_allreduce_start(rows.reshape(-1)).wait(self._deadline_s)
        loss, correct, valid = in_order(rows.reshape(-1, 3))
        return Score(loss / valid, correct / valid, int(valid)) if valid else None

    def _rows(self, split: Split, batch: int):
        """(loss, correct, valid) of each part of this rank's."""
        return self._ctx.space("scores", (3 * -(-split.count // batch),), "float64")

    def rehearse(self, like: Batch, split: Split, batch: int) -> None:
        """Run every kernel of :meth:`score` on as many examples, of zeros."""
        count = batch // self._transport.size
        arrays = {name: getattr(like, name) for name in PER_EXAMPLE}
        blank = {name: np.zeros((count, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        self._add(replace(like, **blank), self._rows(split, batch)[:3])

    def _add(self, part, totals) -> None:
        x, labels, self._ctx.examples = self._feed.load(self._ctx.space, part, 0, len(part.labels))
        logits, _ = self._graph.forward(self._ctx, x)
        self._loss.forward(self._ctx, logits, labels, totals)
