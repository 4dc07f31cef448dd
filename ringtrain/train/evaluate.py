"""Computes the loss and the metrics of a split, with each example counted once, at any number of ranks."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch, evaluation_batches
from ringtrain.data.split import Split
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Pass
from ringtrain.nn.graph import Graph
from ringtrain.nn.losses import Loss, label_form
from ringtrain.nn.metrics import ClassCounts
from ringtrain.nn.spec import IMAGE_EXTENTS
from ringtrain.ops.base import Ops
from ringtrain.train.step.divergence import WrongExample, raise_wrong_examples, wrong_examples
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.loss_sum import in_order
from ringtrain.train.step.partition import blank_batch
from ringtrain.train.stopping.signals import StopPoll
from ringtrain.transport.base import Transport


class EvaluationStopped(Exception):
    """A rank has to stop."""


EVALUATION_BATCH = 128  # examples a rank, at a time


def crop_of(graph: Graph) -> tuple[int, int] | None:
    """(height, width) of the network's input; None if it is no image."""
    if len(graph.input_shape) != IMAGE_EXTENTS:
        return None
    height, width, *_ = graph.input_shape
    return height, width


@dataclass(frozen=True, slots=True)
class Score:
    """loss: mean over labelled elements; accuracy: the fraction of them that is right, None of a loss that counts none;
    examples: their number; metrics: further ones by name, None for one that is not defined; classes: counts by class,
    where asked for."""

    loss: float
    accuracy: float | None
    examples: int
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    classes: ClassCounts | None = None


def bad_images(transport: Transport, split: Split, known: Container[int] = ()) -> dict[int, str]:
    """Return why images could not be read on any rank, by their numbers, without those that are known. Collective."""
    if split.problems is None:
        return {}
    unknown = [each for each in split.problems.copy().items() if each[0] not in known]
    return dict(sorted(each for rank in transport.gather_json(unknown) for each in rank))


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

    def score(
        self, split: Split, batch: int, grain: int = 1, whole: bool = False, by_class: bool = False
    ) -> Score | None:
        """Score a split; None if no example has a label. Raises EvaluationStopped, on every rank, if one has to stop,
        and DivergedError for labels that make any loss NaN. Collective.

        batch: examples at a time, over all ranks; grain: those that stay together; whole,
        by_class: see :meth:`ringtrain.nn.losses.Loss.metrics`

        Each rank's parts have rows of their own, zeros elsewhere, so that the sum over ranks is exact; rows are then
        added in the order of their examples. With a grain of batch/ranks the score has the same bits at any number of
        ranks. Counts are whole numbers, and exact in any case.
        """
        place, size = self._place, len(self._ranks)
        output = self._graph.shapes[self._graph.output]
        metrics = self._loss.metrics(output, label_form(split), whole, by_class)
        totals = self._rows(split, batch)
        parts, counts = totals.size // 3, np.zeros(metrics.counts, np.int64)
        rows = np.zeros((parts, size, 3 + metrics.sums))
        wrong: list[WrongExample] = []
        stop = StopPoll(self._transport, self._stop_requested, self._deadline_s)
        self._ops.fill(totals, 0)
        with evaluation_batches(split, batch, place, size, grain, crop_of(self._graph)) as batches:
            for part in batches:
                if len(part.labels):
                    outputs = self._add(part, totals[3 * part.iteration : 3 * part.iteration + 3])
                    if metrics.sums or metrics.counts:
                        values = self._feed.restored(self._ops.to_host(outputs))
                        metrics.add(values, part.labels, rows[part.iteration, place, 3:], counts)
                    wrong += wrong_examples(self._loss, part, output)[: 1 - len(wrong)]
                if stop():
                    stop.answer()
                    raise EvaluationStopped
        stop.answer()
        if place is not None:
            rows[:, place, :3] = self._ops.to_host(totals).reshape(-1, 3)
        numbers = np.concatenate([rows.reshape(-1), counts.astype(np.float64)])  # whole up to 2^53
        self._transport.native_allreduce_start(numbers).wait(self._deadline_s)
        loss, correct, valid, *sums = in_order(numbers[: rows.size].reshape(-1, rows.shape[2]))
        counts = numbers[rows.size :].astype(np.int64)
        if not valid:
            return None
        if not math.isfinite(loss):
            raise_wrong_examples(self._transport, wrong)
        return Score(
            loss=loss / valid,
            accuracy=correct / valid if self._loss.accuracy else None,
            examples=int(valid),
            metrics=metrics.read(int(valid), np.array(sums), counts, loss / valid),
            classes=metrics.classes(counts) if by_class else None,
        )

    def _rows(self, split: Split, batch: int) -> Array:
        """The memory for (loss, correct, valid) of each of this rank's parts."""
        return self._ctx.space("scores", (3 * -(-split.count // batch),), "float64")

    def rehearse(self, like: Batch, split: Split, batch: int) -> None:
        """Run every kernel of :meth:`score` on as many examples of zeros, on a rank that computes."""
        if self._place is not None:
            self._add(blank_batch(like, batch // len(self._ranks)), self._rows(split, batch)[:3])

    def _add(self, part: Batch, totals: Array) -> Array:
        x, labels, self._ctx.examples = self._feed.load(self._ctx.space, part, 0, len(part.labels))
        logits, _ = self._graph.forward(self._ctx, x)
        self._loss.forward(self._ctx, logits, labels, totals)
        return logits
