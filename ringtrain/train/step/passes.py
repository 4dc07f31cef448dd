"""Forward and backward passes of this rank's network, one micro-batch after another."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Pass, Span
from ringtrain.nn.graph import Graph
from ringtrain.nn.loss import SoftmaxCrossEntropy
from ringtrain.ops.keys import additive_key
from ringtrain.train.step.input import DeviceInput


@dataclass(slots=True)
class MicroBatch:
    """Device arrays of one micro-batch.

    sums:    (loss, correct, valid), to which the loss is added
    tapes:   the values that backward needs, once forward is done
    dlogits: the gradient of the loss by the logits, once it is known
    """

    x: object
    labels: object
    sums: object
    tapes: object = None
    dlogits: object = None


class TimedReduction:
    """An all-reduce within layers, and the seconds that this rank has spent in it."""

    def __init__(self, add_over_ranks: Callable):
        self._add_over_ranks, self.seconds = add_over_ranks, 0.0

    def __call__(self, numbers) -> None:
        began = time.perf_counter()
        self._add_over_ranks(numbers)
        self.seconds += time.perf_counter() - began


class ModelPasses:
    """Runs forward and backward of one micro-batch at a time.

    ctx:         how passes are made; its key and its total are set for each iteration
    seed:        of the run's random numbers
    cuts:        names of spans after which the backward pass with final gradients is cut
    scale:       the factor of the loss; None: 1
    denominator: the loss's
    """

    def __init__(
        self,
        graph: Graph,
        arena: Arena,
        feed: DeviceInput,
        loss: SoftmaxCrossEntropy,
        ctx: Pass,
        seed: int,
        cuts: frozenset[str] = frozenset(),
        scale: LossScale | None = None,
    ):
        self.graph, self.feed, self.ctx, self.denominator = graph, feed, ctx, 1.0
        self._arena, self._loss, self._seed, self._cuts, self._scale = arena, loss, seed, cuts, scale
        self.micro_batch: MicroBatch | None = None

    def begin(self, iteration: int) -> None:
        """Set the key of the iteration's random numbers."""
        self.ctx.ops.upload(np.array([additive_key(self._seed, iteration)], np.uint64), self.ctx.key)

    def load(self, batch: Batch, start: int, stop: int, sums=None) -> None:
        """Bring examples ``start:stop`` of the batch to the device, as the current micro-batch."""
        x, labels, self.ctx.examples = self.feed.load(self.ctx.space, batch, start, stop)
        self.micro_batch = MicroBatch(x, labels, sums)

    def forward(self, before_read: Callable[[Span], None]):
        """The logits of the current micro-batch."""
        logits, self.micro_batch.tapes = self.graph.forward(self.ctx, self.micro_batch.x, need=before_read)
        return logits

    def loss_gradient(self, logits, labels):
        """The gradient of the loss by these logits; adds to the sums of the current micro-batch."""
        factor = self._scale.factor if self._scale is not None else 1.0
        return self._loss.backward(self.ctx, logits, labels, self.micro_batch.sums, self.denominator / factor)

    def backward(self, accumulate: bool, last: bool) -> Iterator[Span]:
        """Spans, each when its gradient is in the arena. ``accumulate``: gradients are added to those that are there;
        ``last``: they are final then."""
        self.ctx.accumulate = accumulate
        self.ctx.cuts = self._cuts if last else frozenset()
        return self.graph.backward(self.ctx, self.micro_batch.dlogits, self.micro_batch.tapes)

    def without_examples(self) -> Iterator[Span]:
        """Spans in the order of backward; their gradients are zero."""
        self.ctx.ops.fill(self._arena.grads, 0)
        return reversed(self._arena.spans)

    def first_nonfinite(self, batch: Batch, micro: list[tuple[int, int]]) -> int | None:
        """The place in ``graph.plan`` of the first layer that gives a non-finite value for these micro-batches."""
        order, found = [node.name for node in self.graph.plan], []
        for start, stop in micro:
            self.load(batch, start, stop)
            _, tapes = self.graph.forward(self.ctx, self.micro_batch.x)
            found.append(self.graph.first_nonfinite(self.ctx, tapes))
        return min((order.index(name) for name in found if name), default=None)

    def forget(self) -> None:
        """Give back the memory of passes; the next pass allocates it anew."""
        self.micro_batch = self.ctx.examples = None
        self.ctx.space.clear()
