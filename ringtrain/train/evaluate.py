"""Loss and accuracy on a split: each example counted once, at any number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ringtrain.data.batches import Batch, evaluation_batches
from ringtrain.data.dataset import Split
from ringtrain.nn.base import Pass, Workspace
from ringtrain.nn.graph import Graph
from ringtrain.nn.loss import SoftmaxCrossEntropy
from ringtrain.ops.base import Ops
from ringtrain.train.asking import Asked, never
from ringtrain.train.feed import Feed
from ringtrain.train.parts import PER_EXAMPLE
from ringtrain.transport.base import Transport


class BrokenOff(Exception):
    """A rank was told to stop."""


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
        feed: Feed,
        transport: Transport,
        deadline_s: float,
        told_to_stop: Callable[[], bool] = never,
    ):
        self._deadline_s, self._told_to_stop = deadline_s, told_to_stop
        self._ops, self._graph, self._loss, self._feed, self._transport = ops, graph, loss, feed, transport
        self._ctx = Pass(ops, space, training=False, recorded=True)
        self._totals = ops.zeros((3,), "float64")
        self._shared = np.zeros(3)

    def score(self, split: Split, batch: int) -> Score | None:
        """``batch``: examples at a time, over all ranks. None where no example has a label. Raises BrokenOff, on every
        rank, where one was told to stop."""
        self._ops.fill(self._totals, 0)
        stop = Asked(self._transport, self._told_to_stop, self._deadline_s)
        crop = self._graph.input_shape[:2]
        with evaluation_batches(split, batch, self._transport.rank, self._transport.size, crop=crop) as batches:
            for part in batches:
                if len(part.labels):
                    self._add(part)
                if stop():
                    stop.answer()
                    raise BrokenOff
        stop.answer()
        self._ops.download(self._totals, self._shared)
        self._transport.native_allreduce_start(self._shared).wait(self._deadline_s)
        loss, correct, valid = self._shared
        return Score(float(loss / valid), float(correct / valid), int(valid)) if valid else None

    def rehearse(self, like: Batch, count: int) -> None:
        """Run every kernel on so many examples, of zeros."""
        arrays = {name: getattr(like, name) for name in PER_EXAMPLE}
        blank = {name: np.zeros((count, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        self._add(replace(like, **blank))

    def _add(self, part) -> None:
        x, labels, self._ctx.examples = self._feed.load(self._ctx.space, part, 0, len(part.labels))
        logits, _ = self._graph.forward(self._ctx, x)
        self._loss.forward(self._ctx, logits, labels, self._totals)
