"""One rank's iterations of a pipeline: lists of passes of micro-batches, which all ranks make alike.

::

    F forward, B backward; 1a is micro-batch 1 of rank a. Each row is the list of one rank
    rank a in front          F0a F1a B0a B1a
    rank b in front          F0b F1b B0b B1b
    the first group behind   F0a F0b F1a B0a F1b B0b B1a B1b
    the last, with the loss  F0a B0a F0b B0b F1a B1a F1b B1b

A group's list has forward ahead of backward, so that it need not wait for the groups behind it; but no micro-batch that
its rank in front sends only after a later gradient.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ringtrain.arrays import Array
from ringtrain.config.record import TrainConfig
from ringtrain.data.batches.batches import Batch
from ringtrain.data.batches.sampler import batch_part, largest_part
from ringtrain.exchange.model_parallel.activation_messages import SUMS, Crossing, GroupRows
from ringtrain.exchange.model_parallel.pipeline import IN_FLIGHT, Pipeline
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Pass
from ringtrain.nn.graph import Tapes
from ringtrain.nn.losses import LabelForm, Loss
from ringtrain.ops.base import Ops
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.instructions import WITHOUT_EXAMPLES, CheckLoss, ReduceLoss, Update
from ringtrain.train.step.partition import micro_batches


@dataclass(frozen=True, slots=True)
class Message:
    """Micro-batch ``micro`` of the rank that has part ``place`` of the batch: ``count`` examples."""

    place: int
    micro: int
    count: int


@dataclass(frozen=True, slots=True)
class Expect:
    """Receive the activations of a micro-batch from now on."""

    doing = "expecting activations"
    message: Message


@dataclass(frozen=True, slots=True)
class RunForward:
    """``slot``: of the memory of its pass, up to backward."""

    doing = "forward, with activations from or for other ranks"
    message: Message
    slot: int


@dataclass(frozen=True, slots=True)
class RunBackward:
    """``accumulate``: gradients are added to earlier ones. ``last``: they are final then, and the exchange gets each
    span."""

    doing = "backward, with gradients from or for other ranks"
    message: Message
    slot: int
    accumulate: bool
    last: bool


def messages_of(total: int, places: int, parts: int, grain: int) -> list[Message]:
    """Return the micro-batches of an iteration of ``total`` examples, up to ``parts`` of whole grains at each of
    ``places``, in the order in which they are handled: micro-batch by micro-batch, places in order."""
    messages = []
    for place in range(places):
        start, stop = batch_part(total, place, places, grain)
        cuts = micro_batches(stop - start, parts, grain)
        messages += [Message(place, micro, b - a) for micro, (a, b) in enumerate(cuts)]
    return sorted(messages, key=lambda message: message.micro)


def passes_of(messages: Sequence[Message], ahead: int, receives: bool) -> list:
    """Return the passes of these micro-batches, one after another, with forward of up to ``ahead`` of them before the
    first one's backward. ``receives``: whether their activations come from other ranks."""
    known = {(message.place, message.micro): message for message in messages}
    work: list = [Expect(message) for message in messages if message.micro < IN_FLIGHT] if receives else []
    away: deque[int] = deque()

    def back() -> None:
        index = away.popleft()
        message = messages[index]
        work.append(RunBackward(message, index % ahead, index > 0, index == len(messages) - 1))
        following = known.get((message.place, message.micro + IN_FLIGHT))
        if receives and following is not None:
            work.append(Expect(following))

    for index, message in enumerate(messages):
        earlier = known.get((message.place, message.micro - IN_FLIGHT))
        while len(away) == ahead or earlier in [messages[each] for each in away]:
            back()
        work.append(RunForward(message, index % ahead))
        away.append(index)
    while away:
        back()
    return work


@dataclass(slots=True)
class PassSlot:
    """The memory of a pass from forward to backward. ``dy``, ``sums``: the gradient of the output and the sums of the
    loss, on a rank that computes it."""

    ctx: Pass
    tapes: Tapes = field(init=False)
    dy: Array = field(init=False)
    sums: np.ndarray = field(init=False)


class PipelineStage:
    """Runs the passes of one rank's layers.

    labels: the form of one example's
    grain:  examples that stay together
    """

    def __init__(
        self,
        config: TrainConfig,
        exchange: Pipeline,
        rank: int,
        ops: Ops,
        feed: DeviceInput,
        loss: Loss,
        labels: LabelForm,
        grain: int,
    ):
        self._exchange, self._ops, self._feed, self._loss, self._labels = exchange, ops, feed, loss, labels
        self._mail, self._part, table, roles = exchange.mail, exchange.part, exchange.table, exchange.facts.roles
        run, ranks = config.run, len(roles.trainers)
        self._place, self._cut = roles.part(rank), (ranks, run.accumulate, grain)
        groups_behind = len(table.placements) - 1 - table.index
        ahead = 1 + 2 * groups_behind if self._is_behind else IN_FLIGHT
        recompute = config.device.recompute and not self._is_behind
        self._slots = [PassSlot(Pass(ops, Workspace(ops), recompute=recompute)) for _ in range(ahead)]
        self._loss_sums = ops.zeros((SUMS,), "float64")
        self._before: dict[tuple[int, int], Crossing] = {}  # by (place, micro-batch % IN_FLIGHT)
        self._behind: dict[tuple[int, int], Crossing] = {}
        rows = GroupRows(table.ranks.index(rank), len(table.ranks)) if self._is_behind else GroupRows()
        capacity = largest_part(largest_part(run.batch, ranks, grain), run.accumulate, grain)
        shapes = self._part.input_shape, self._part.shapes[self._part.output]
        for place, trainer in enumerate(roles.trainers):
            for micro in range(min(IN_FLIGHT, run.accumulate)) if self._place in (None, place) else ():
                at, came = (place, micro), None
                if self._is_behind:
                    peers = table.before(trainer)
                    came = self._before[at] = self._mail.crossing(peers, place, rows, capacity, shapes[0], labels)
                if table.behind:
                    crossing = self._mail.crossing(table.behind, place, rows, capacity, shapes[1], labels, came)
                    self._behind[at] = crossing

    @property
    def _is_behind(self) -> bool:
        return self._place is None

    def begin(self, batch: Batch, micro: list[tuple[int, int]], ctx: Pass, totals: Array) -> None:
        """Begin an iteration on this rank's part of the batch, cut into ``micro``. ``ctx`` has the key of its random
        numbers; the sums of the loss are added to ``totals``."""
        self._batch, self._micro, self._totals = batch, micro, totals
        self._sums = np.zeros(SUMS)
        for slot in self._slots:
            slot.ctx.key, slot.ctx.total = ctx.key, batch.total

    def instructions(self, micro_batches: int) -> tuple:
        """Return the iteration. The sum over ranks comes last: the last ranks have the loss, and have it late."""
        messages = messages_of(self._batch.total, *self._cut)
        if not self._is_behind:
            messages = [message for message in messages if message.place == self._place]
        if not messages:
            return WITHOUT_EXAMPLES
        work = passes_of(messages, len(self._slots), receives=self._is_behind)
        return (*work, ReduceLoss(), CheckLoss(), Update())

    def run(self, instruction: object) -> None:
        match instruction:
            case Expect(message):
                self._mail.expect(self._before[_at(message)].forward, message.count)
            case RunForward(message, number):
                self._forward(message, number, self._slots[number])
            case RunBackward(message, number, accumulate, last):
                self._backward(message, self._slots[number], accumulate, last)

    def _forward(self, message: Message, number: int, slot: PassSlot) -> None:
        ctx, behind = slot.ctx, self._behind.get(_at(message))
        if self._is_behind:
            came = self._before[_at(message)].forward
            self._mail.wait(came, self._name(message))
            if self._exchange.layouts is not None:
                self._exchange.layouts.iterate(message.count, number)
            x, (ctx.examples, labels) = came.array(message.count), came.batch(message.count)
        else:
            x, labels, ctx.examples = self._feed.load(ctx.space, self._batch, *self._micro[message.micro])
        y, slot.tapes = self._part.forward(ctx, x, need=self._exchange.before_read)
        if behind is None:
            self._ops.fill(self._loss_sums, 0)
            slot.dy = self._loss.backward(ctx, y, labels, self._loss_sums, self._batch.valid_total)
            slot.sums = self._ops.to_host(self._loss_sums)
            return
        if not self._is_behind:
            for array, sent in zip((ctx.examples, labels), behind.forward.batch(message.count), strict=True):
                self._ops.copy(array, sent)
        self._mail.send_on(behind, message.count, y)

    def _backward(self, message: Message, slot: PassSlot, accumulate: bool, last: bool) -> None:
        behind, name = self._behind.get(_at(message)), self._name(message)
        if behind is not None:
            slot.dy, slot.sums = self._mail.answer(behind, message.count, name)
        if not self._is_behind:
            self._sums += slot.sums
            if last:
                self._ops.upload(self._sums, self._totals)
        slot.ctx.accumulate = accumulate
        for span in self._part.backward(slot.ctx, slot.dy, slot.tapes):
            if last:
                self._exchange.grad_ready(span)
        if self._is_behind:
            assert slot.tapes.dx is not None, "this part follows another"
            before = self._before[_at(message)]
            self._mail.send_back(before, message.count, slot.tapes.dx, slot.sums, name)

    def _name(self, message: Message) -> str:
        return f"micro-batch {message.micro} of rank {message.place} in iteration {self._batch.iteration + 1}"

    def rehearse(self) -> None:
        """Run forward and backward of a part behind on one example of zeros. A part in front has the kernels of the
        whole network."""
        if not self._is_behind:
            return
        ctx, ops, output = self._slots[0].ctx, self._ops, self._part.shapes[self._part.output]
        ctx.examples = ops.zeros((1,), "int64")
        y, tapes = self._part.forward(ctx, ops.zeros((1, *self._part.input_shape), ops.active))
        form, _ = self._loss.labels_of(output)  # the labels themselves fit the output of the last part alone
        labels = ops.zeros((1, *form.shape), ops.dtype if form.values else "int32")
        self._loss.backward(ctx, ops.zeros((1, *output), ops.active), labels, self._loss_sums, 1.0)
        for _ in self._part.backward(ctx, y, tapes):
            pass


def _at(message: Message) -> tuple[int, int]:
    return message.place, message.micro % IN_FLIGHT
