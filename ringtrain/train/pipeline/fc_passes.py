"""Passes of messages through the layers of a rank with fully connected layers: each message has a tape of its own from
forward to backward."""

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.model_parallel.activation_messages import SUMS, GroupRows, Header
from ringtrain.exchange.model_parallel.pipeline_behind import PipelineBehind
from ringtrain.nn.base import Pass
from ringtrain.nn.losses import LabelForm, Loss
from ringtrain.nn.workspace import Workspace
from ringtrain.ops.base import Ops
from ringtrain.ops.keys import additive_key
from ringtrain.train.pipeline.fc_messages import MessageSlot


class FcPasses:
    """Runs messages through this rank's layers. ``seed``: of the run's random numbers."""

    def __init__(self, exchange: PipelineBehind, ops: Ops, loss: Loss, labels: LabelForm, seed: int):
        self._part, self._layouts, self._mail = exchange.part, exchange.layouts, exchange.mail
        self._ops, self._loss, self._labels, self._seed = ops, loss, labels, seed
        self._table, self._rows = exchange.table, GroupRows(exchange.group.rank, exchange.group.size)
        self._in, self._out = self._part.input_shape, self._part.shapes[self._part.output]
        self._sums = ops.zeros((SUMS,), "float64")
        self._free: list[Pass] = []  # made as messages need them, and used again

    def make_slot(self, number: int, place: int, trainer: int, capacity: int) -> MessageSlot:
        """Return the memory of messages of ``place``, whose images rank ``trainer`` has, of up to ``capacity``
        examples."""
        slot, before, behind = MessageSlot(number), self._table.before(trainer), self._table.behind
        slot.before = self._mail.crossing(before, place, self._rows, capacity, self._in, self._labels)
        if behind:
            slot.behind = self._mail.crossing(behind, place, self._rows, capacity, self._out, came=slot.before)
        return slot

    def rehearse(self) -> None:
        """Run forward and backward on one example of zeros."""
        ctx, ops = self._tape(Header(-1, 0, 0, 1, 1, 1)), self._ops
        ctx.examples = ops.zeros((1,), "int64")
        y, tapes = self._part.forward(ctx, ops.zeros((1, *self._in), ops.active))
        form, _ = self._loss.labels_of(self._out)  # the labels themselves fit the output of the last part alone
        labels = ops.zeros((1, *form.shape), ops.dtype if form.values else "int32")
        self._loss.backward(ctx, ops.zeros((1, *self._out), ops.active), labels, self._sums, 1.0)
        for _ in self._part.backward(ctx, y, tapes):
            pass
        self._free.append(ctx)

    def _tape(self, header: Header) -> Pass:
        ops = self._ops
        ctx = self._free.pop() if self._free else Pass(ops, Workspace(ops), key=ops.zeros((1,), "uint64"))
        assert ctx.key is not None
        ops.upload(np.array([additive_key(self._seed, header.iteration)], np.uint64), ctx.key)
        ctx.total = header.total
        return ctx

    def forward(self, header: Header, slot: MessageSlot) -> Array:
        """Return the output for this rank's rows of the message."""
        slot.ctx, message = self._tape(header), slot.before.forward
        slot.ctx.examples, _ = message.batch(header.count)
        if self._layouts is not None:
            self._layouts.iterate(header.count, slot.number)
        y, slot.tapes = self._part.forward(slot.ctx, message.array(header.count))
        return y

    def loss_gradient(self, header: Header, slot: MessageSlot, y: Array) -> tuple[Array, np.ndarray]:
        """Return the gradient of the loss by the output ``y``, and the sums of the loss."""
        _, labels = slot.before.forward.batch(header.count)
        self._ops.fill(self._sums, 0)
        dy = self._loss.backward(slot.ctx, y, labels, self._sums, header.valid)
        return dy, self._ops.to_host(self._sums)

    def backward(self, header: Header, slot: MessageSlot, dy: Array, sums: np.ndarray, accumulate: bool) -> None:
        """Run backward, and send the gradient of the input to the ranks before."""
        slot.ctx.accumulate, message = accumulate, slot.before.back
        for _ in self._part.backward(slot.ctx, dy, slot.tapes):
            pass
        self._mail.wait(message)
        message.report(header.id, header.count, sums)
        assert slot.tapes.dx is not None, "this part follows another"
        self._ops.copy(slot.tapes.dx, message.array(header.count))
        self._mail.send(message, header.count)
        self._free.append(slot.ctx)
