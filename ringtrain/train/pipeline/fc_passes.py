"""Passes of messages through the layers of a rank with fully connected layers: each message has a tape of its own from
forward to backward."""

from collections.abc import Callable, Sequence

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.model_parallel.activation_messages import SUMS, GroupRows, Header, Id, describe_id
from ringtrain.exchange.model_parallel.pipeline_behind import PipelineBehind
from ringtrain.nn.base import Pass
from ringtrain.nn.losses import LabelForm, Loss
from ringtrain.nn.shapes import element_count
from ringtrain.nn.workspace import Workspace
from ringtrain.ops.base import Ops
from ringtrain.ops.keys import additive_key
from ringtrain.train.pipeline.fc_messages import MessageSlot


class TapePool:
    """Tapes by message: at most ``limit``, made at their first use and reused. Raises RuntimeError for a second tape of
    one message, and above the limit."""

    def __init__(self, ops: Ops, limit: int):
        self._ops, self._limit = ops, limit
        self._free: list[Pass] = []
        self._taken: dict[Id, Pass] = {}

    @property
    def made(self) -> int:
        return len(self._free) + len(self._taken)

    def take(self, id: Id) -> Pass:
        if id in self._taken:
            raise RuntimeError(f"{describe_id(id)} has a tape already")
        if not self._free and self.made == self._limit:
            raise RuntimeError(f"{describe_id(id)} wants a tape, and all {self._limit} are taken")
        if not self._free:
            self._free.append(Pass(self._ops, Workspace(self._ops), key=self._ops.zeros((1,), "uint64")))
        self._taken[id] = self._free.pop()
        return self._taken[id]

    def give(self, id: Id) -> None:
        self._free.append(self._taken.pop(id))


class FcPasses:
    """Runs messages through this rank's layers. ``seed``: of the run's random numbers; ``tapes``: the most messages
    that are on this rank, or behind it, at a time."""

    def __init__(self, exchange: PipelineBehind, ops: Ops, loss: Loss, labels: LabelForm, seed: int, tapes: int):
        self._part, self._layouts, self._mail = exchange.part, exchange.layouts, exchange.mail
        self._ops, self._loss, self._labels, self._seed = ops, loss, labels, seed
        self._rows = GroupRows(exchange.group.rank, exchange.group.size)
        self._in, self._out = self._part.input_shape, self._part.shapes[self._part.output]
        self._sums = ops.zeros((SUMS,), "float64")
        self.pool = TapePool(ops, tapes)

    def make_slot(
        self, place: int, number: int, before: Sequence[int], behind: Sequence[int], capacity: int
    ) -> MessageSlot:
        """Return the memory of messages of ``place``, from the ranks ``before`` and to those ``behind``, of up to
        ``capacity`` examples."""
        mail, rows = self._mail, self._rows
        memory = before, place, rows, capacity, element_count(self._in)
        slot = MessageSlot(number, mail.forward(*memory, self._labels), mail.back(*memory))
        if behind:
            width = element_count(self._out)
            onward = mail.onward(slot.activations, behind, capacity, width)
            slot.onward = onward, mail.back(behind, place, rows, capacity, width)
        return slot

    def rehearse(self) -> None:
        """Run forward and backward on one example of zeros."""
        header = Header(-1, 0, 0, 1, 1, 1)
        ctx, ops = self._tape(header), self._ops
        ctx.examples = ops.zeros((1,), "int64")
        y, tapes = self._part.forward(ctx, ops.zeros((1, *self._in), ops.active))
        form, _ = self._loss.labels_of(self._out)  # the labels themselves fit the output of the last part alone
        labels = ops.zeros((1, *form.shape), ops.dtype if form.values else "int32")
        self._loss.backward(ctx, ops.zeros((1, *self._out), ops.active), labels, self._sums, 1.0)
        for _ in self._part.backward(ctx, y, tapes):
            pass
        self.pool.give(header.id)

    def _tape(self, header: Header) -> Pass:
        ctx = self.pool.take(header.id)
        assert ctx.key is not None, "the pool gives one"
        self._ops.upload(np.array([additive_key(self._seed, header.iteration)], np.uint64), ctx.key)
        ctx.total = header.total
        return ctx

    def forward(self, header: Header, slot: MessageSlot) -> Array:
        """Return the output for this rank's rows of the message."""
        message = slot.activations
        assert message.examples is not None, "a message forward"
        slot.ctx = self._tape(header)
        slot.ctx.examples = message.examples[: self._rows.count(header.count)]
        if self._layouts is not None:
            self._layouts.iterate(header.count, slot.number)
        y, slot.tapes = self._part.forward(slot.ctx, message.array(header.count, self._in))
        return y

    def send_on(self, header: Header, slot: MessageSlot, y: Array, announce: Callable[[Header], None]) -> None:
        """Send the output to the ranks behind; ``announce``: sends the header."""
        assert slot.onward is not None, "ranks are behind"
        onward, gradient = slot.onward
        self._ops.copy(y, onward.array(header.count, self._out))
        self._mail.expect(gradient, header.count)
        announce(header)
        self._mail.send(onward, header.count)

    def loss_gradient(self, header: Header, slot: MessageSlot, y: Array) -> tuple[Array, np.ndarray]:
        """Return the gradient of the loss by the output ``y``, and the sums of the loss."""
        assert slot.activations.labels is not None, "a message forward"
        labels = slot.activations.labels[: self._rows.count(header.count)]
        self._ops.fill(self._sums, 0)
        dy = self._loss.backward(slot.ctx, y, labels, self._sums, header.valid)
        return dy, self._ops.to_host(self._sums)

    def gradient_from_behind(self, header: Header, slot: MessageSlot) -> tuple[Array, np.ndarray]:
        """Return the gradient that has come from the ranks behind, and the sums of the loss."""
        assert slot.onward is not None, "its activations have gone to the ranks behind"
        onward, gradient = slot.onward
        self._mail.check(gradient, header.id, header.count)
        self._mail.wait(onward)
        return gradient.array(header.count, self._out), gradient.sums(header.count)

    def backward(self, header: Header, slot: MessageSlot, dy: Array, sums: np.ndarray, accumulate: bool) -> None:
        """Run backward, and send the gradient of the input to the ranks before."""
        slot.ctx.accumulate = accumulate
        for _ in self._part.backward(slot.ctx, dy, slot.tapes):
            pass
        self._mail.wait(slot.gradient)
        slot.gradient.report(header.id, header.count, sums)
        assert slot.tapes.dx is not None, "this part follows another"
        self._ops.copy(slot.tapes.dx, slot.gradient.array(header.count, self._in))
        self._mail.send(slot.gradient, header.count)
        self.pool.give(header.id)
