"""The iterations of a rank with fully connected layers: it serves messages, runs activations forward, to the next group
of ranks or to the loss, and gradients backward, to the group before.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.model_parallel.activation_messages import SUMS, GroupRows, Header
from ringtrain.exchange.model_parallel.pipeline import IN_FLIGHT, MessageServing, PipelineBehind
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Pass
from ringtrain.nn.losses import LabelForm, Loss
from ringtrain.ops.base import Ops
from ringtrain.ops.keys import additive_key
from ringtrain.train.pipeline.fc_messages import (
    BatchCut,
    Choice,
    FcMessages,
    Kind,
    MessageSlot,
    PlaceMessages,
    messages_of,
)
from ringtrain.train.step.instructions import CheckLoss, ReduceLoss, Update
from ringtrain.train.step.stage import PipelineStage, StageIteration


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


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve the messages of an iteration."""

    doing = "serving messages"


class FcStage(PipelineStage, MessageServing):
    """Runs the iterations of a rank with fully connected layers. ``rate``: iteration → learning rate; ``seed``: of the
    run's random numbers"""

    def __init__(
        self,
        exchange: PipelineBehind,
        ops: Ops,
        loss: Loss,
        labels: LabelForm,
        rate: Callable[[int], float],
        cut: BatchCut,
        seed: int,
    ):
        self._exchange, self._rate, self._cut = exchange, rate, cut
        self._mail, behind = exchange.mail, exchange.table.behind
        self._passes = FcPasses(exchange, ops, loss, labels, seed)
        depth, places = min(IN_FLIGHT, cut.parts), []
        for place, trainer in enumerate(exchange.facts.roles.trainers):
            numbers = range(place * depth, (place + 1) * depth)
            slots = [self._passes.make_slot(number, place, trainer, cut.capacity) for number in numbers]
            headers = self._mail.headers_from(exchange.table.before(trainer)[0], place)
            places.append(PlaceMessages(headers, slots, self._mail))
        self._messages = FcMessages(places, not exchange.apart, exchange.group, self._mail)
        self._has_loss = not behind
        announces = behind and self._messages.leads
        self._headers = {place: self._mail.headers_to(behind, place) for place in range(cut.places if announces else 0)}
        self._summed = 0  # messages since the last update
        # Since the last meeting: examples that have passed, and examples of begun iterations.
        self._examples = self._target = 0
        self._serving = False  # whether messages may come, until goodbyes

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, iteration: StageIteration) -> None:
        self._batch = iteration.batch

    def instructions(self, micro_batches: int) -> tuple:
        """An iteration without micro-batches of this rank's own."""
        return (Serve(), ReduceLoss(), CheckLoss(), Update())

    def run(self, instruction: object) -> None:
        """Serve the messages of this iteration, in order. If ranks are apart, serve until as many examples have passed
        as the begun iterations have, whichever they are of."""
        self._summed = 0
        if not self._exchange.apart:
            messages = messages_of(self._batch.iteration, self._batch.total, self._cut)
            self._messages.expect(messages)
            while self._summed < len(messages):
                self._run(self._messages.wait())
            return
        self._open()
        self._target += self._batch.total
        while self._examples < self._target:
            self._run(self._messages.wait())
        self._exchange.left_out = not self._summed

    def rehearse(self) -> None:
        self._passes.rehearse()

    # ── service, where ranks in front wait for no other ───────────────────────────────────────────────────────
    def _open(self) -> None:
        """Expect messages until the goodbyes of this meeting."""
        if not self._serving:
            self._messages.open()
        self._serving, self.drained = True, False

    def poll(self) -> None:
        choice = self._messages.test() if self._serving else None
        if choice is not None:
            self._run_or_end(choice)

    def end(self) -> None:
        if self._exchange.apart:
            self._open()
            self._until_goodbye(lambda: None)

    def serve(self, meanwhile: Callable[[], None]) -> None:
        """Serve until all places have said goodbye; update when as many examples have passed as a batch has."""
        self._open()
        self._summed = 0

        def update() -> None:
            meanwhile()
            if self._summed and self._examples >= self._newest.total:
                self._examples -= self._newest.total
                self._update()

        self._until_goodbye(update)
        if self._summed:
            self._update()

    def _update(self) -> None:
        iteration = self._newest.iteration
        self._exchange.finish(iteration, self._rate(iteration))
        self._summed = 0

    def _until_goodbye(self, meanwhile: Callable[[], None]) -> None:
        while self._serving:
            self._run_or_end(self._messages.wait(meanwhile))

    def _run_or_end(self, choice: Choice) -> None:
        if choice[0] is not Kind.GOODBYE:
            self._run(choice)
            return
        self._messages.wait_for_goodbyes()
        for place, headers in self._headers.items():
            self._mail.say_goodbye(headers, place)
        self._examples = self._target = 0
        self._serving, self.drained = False, True

    # ── one message ───────────────────────────────────────────────────────────────────────────────────────────
    def _run(self, choice: Choice) -> None:
        header, slot = self._messages.take(choice)
        if choice[0] is Kind.BACKWARD:
            dy, sums = self._mail.answer(slot.behind, header)
        else:
            y = self._passes.forward(header, slot)
            if not self._has_loss:
                self._mail.send_on(slot.behind, header, y, self._headers.get(header.place))
                self._messages.send_on(header, slot)
                return
            dy, sums = self._passes.loss_gradient(header, slot, y)
        self._passes.backward(header, slot, dy, sums, accumulate=self._summed > 0)
        self._newest = header
        self._summed += 1
        self._examples += header.count
