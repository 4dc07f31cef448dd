"""Runs forward and backward passes of this rank's network, one micro-batch after another."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.nn.base import Pass, Shape
from ringtrain.nn.graph import Graph, Tapes
from ringtrain.nn.losses import Loss
from ringtrain.ops.keys import additive_key
from ringtrain.train.step.input import DeviceInput
from ringtrain.transport.base import Transport


@dataclass(slots=True)
class MicroBatch:
    """Device arrays of one micro-batch.

    sums:    (loss, correct, valid), to which the loss adds
    tapes:   the values that backward needs, from forward
    dlogits: the gradient of the loss by the logits
    share, partner_labels: the weight of the labels, and the labels that have the rest of it; None: they have none
    """

    x: Array
    labels: Array
    sums: Array | None
    share: float = 1.0
    partner_labels: Array | None = None
    tapes: Tapes = field(init=False)
    dlogits: Array = field(init=False)


NO_MICRO_BATCH = MicroBatch(np.empty(0), np.empty(0), None)


class TimedReduction:
    """The all-reduce of layers' statistics, and the seconds that this rank has spent in it."""

    def __init__(self, transport: Transport, deadline_s: float):
        self._transport, self._deadline_s, self.seconds = transport, deadline_s, 0.0

    def __call__(self, numbers: np.ndarray) -> None:
        began = time.perf_counter()
        self._transport.native_allreduce_start(numbers).wait(self._deadline_s)
        self.seconds += time.perf_counter() - began


class ModelPasses:
    """Runs forward and backward of one micro-batch at a time.

    ctx:         the context of all passes; each iteration sets its total
    seed:        of the run's random numbers
    cuts:        names of spans after which the backward pass with final gradients is cut
    scale:       the factor of the loss, which its gradient is multiplied by; None: 1
    output:      the shape of the output of the whole network; ``graph`` may be a part of it
    denominator: the divisor of the loss
    """

    def __init__(
        self,
        graph: Graph,
        arena: Arena,
        feed: DeviceInput,
        loss: Loss,
        ctx: Pass,
        seed: int,
        cuts: frozenset[str] = frozenset(),
        scale: LossScale | None = None,
        output: Shape | None = None,
    ):
        self.graph, self.feed, self.ctx, self.denominator = graph, feed, ctx, 1.0
        self.arena, self.scale, ctx.factor = arena, scale, None if scale is None else scale.factor_1
        self.output = output or graph.shapes[graph.output]
        self.loss, self._seed, self._cuts = loss, seed, cuts
        self._key = ctx.key = ctx.ops.zeros((1,), "uint64")
        self.micro_batch = NO_MICRO_BATCH

    def begin(self, iteration: int, *numbers: tuple[Array, float]) -> None:
        """Set the key of the iteration's random numbers, and further numbers of it on the device."""
        self.ctx.ops.put((self._key, additive_key(self._seed, iteration)), *numbers)

    def load(self, batch: Batch, start: int, stop: int, sums: Array | None = None) -> None:
        """Load examples ``start:stop`` of the batch as the current micro-batch."""
        x, labels, self.ctx.examples = self.feed.load(self.ctx.space, batch, start, stop)
        self.micro_batch = MicroBatch(x, labels, sums)
        if batch.mix is not None:
            self.micro_batch.share = batch.mix.share
            self.micro_batch.partner_labels = self.feed.partner_labels(self.ctx.space, batch, start, stop)

    def take(self, batch: Batch, start: int, stop: int, sums: Array) -> None:
        """As :meth:`load`, of a batch that is on the device and stays where it is (:meth:`DeviceInput.hold`)."""
        x, labels, self.ctx.examples = self.feed.take(self.ctx.space, batch, start, stop)
        self.micro_batch = MicroBatch(x, labels, sums)

    def forward(self, before_read: Callable[[Span], None]) -> Array:
        logits, self.micro_batch.tapes = self.graph.forward(self.ctx, self.micro_batch.x, need=before_read)
        return logits

    def loss_gradient(self, logits: Array, labels: Array) -> Array:
        """The gradient of the loss by these logits; adds to the sums of the current micro-batch."""
        current = self.micro_batch
        assert current.sums is not None, "training adds to the sums of a batch"
        if current.partner_labels is None:
            return self._gradient(logits, labels, current.sums)
        ops, space = self.ctx.ops, self.ctx.space
        totals, dx = space("mix.totals", (6,), "float64"), space("mix.dx", logits.shape)
        ops.fill(totals, 0)
        ops.copy(self._gradient(logits, labels, totals[:3]), dx)
        others = self._gradient(logits, current.partner_labels, totals[3:])
        ops.scale(dx, current.share)
        ops.scale(others, 1 - current.share)
        ops.add(dx, others, dx)
        ops.mix_totals(totals[:3], totals[3:], current.sums, current.share)
        return dx

    def _gradient(self, logits: Array, labels: Array, totals: Array) -> Array:
        dx = self.loss.backward(self.ctx, logits, labels, totals, self.denominator)
        if self.ctx.factor is not None and not self.loss.scaled:
            self.ctx.ops.scale(dx, self.ctx.factor)
        return dx

    def backward(self, accumulate: bool, last: bool) -> Iterator[Span]:
        """Run the current micro-batch backward; yields each span when its gradient is in the arena. ``accumulate``:
        gradients are added to the arena's; ``last``: they are final then."""
        self.ctx.accumulate = accumulate
        self.ctx.cuts = self._cuts if last else frozenset()
        return self.graph.backward(self.ctx, self.micro_batch.dlogits, self.micro_batch.tapes)

    def without_examples(self) -> Iterator[Span]:
        """Set all gradients to zero; spans in the order of backward."""
        self.ctx.ops.fill(self.arena.grads, 0)
        return reversed(self.arena.spans)

    def first_nonfinite(self, batch: Batch, micro: list[tuple[int, int]]) -> int | None:
        """The place in ``graph.plan`` of the first layer that gives a non-finite value for these micro-batches."""
        order, layers = [node.name for node in self.graph.plan], list[str | None]()
        ctx = replace(self.ctx, recompute=False)  # all outputs are looked at
        for start, stop in micro:
            self.load(batch, start, stop)
            ctx.examples = self.ctx.examples
            _, tapes = self.graph.forward(ctx, self.micro_batch.x)
            layers.append(self.graph.first_nonfinite(ctx, tapes))
        return min((order.index(name) for name in layers if name), default=None)

    def forget(self) -> None:
        """Free the memory of passes; the next pass allocates it anew."""
        self.micro_batch, self.ctx.examples = NO_MICRO_BATCH, None
        self.ctx.space.clear()
