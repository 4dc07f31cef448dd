"""Serves messages on a rank that holds fully connected layers: runs activations forward, to the next rank or to the
loss, and gradients backward, to the rank before. Each message has a tape of its own from forward to backward.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from ringtrain.arrays import Array
from ringtrain.data.batches.sampler import batch_part
from ringtrain.exchange.model_parallel.activation_messages import ActivationMessage, Id, describe_id
from ringtrain.exchange.model_parallel.pipeline import Pipeline
from ringtrain.nn.base import Pass, Workspace
from ringtrain.nn.graph import Tapes
from ringtrain.nn.loss import SoftmaxCrossEntropy
from ringtrain.nn.shapes import element_count
from ringtrain.ops.base import Ops
from ringtrain.train.step.instructions import CheckLoss, ReduceLoss, Update
from ringtrain.train.step.partition import micro_batches
from ringtrain.train.step.stage import PipelineStage, StageIteration


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve all messages of the iteration."""

    doing = "serving messages"


@dataclass(frozen=True, slots=True)
class BatchCut:
    """The cut of a batch: ``places`` parts, one for each rank with images, each of up to ``parts`` micro-batches of
    whole grains and at most ``capacity`` examples."""

    places: int
    parts: int
    grain: int
    capacity: int


@dataclass(frozen=True, slots=True)
class StageMessage:
    micro: int
    place: int
    count: int  # examples


def messages_of(total: int, cut: BatchCut) -> list[StageMessage]:
    """All messages of an iteration of ``total`` examples, in the order in which they are handled."""
    found = []
    for place in range(cut.places):
        start, stop = batch_part(total, place, cut.places, cut.grain)
        parts = micro_batches(stop - start, cut.parts, cut.grain)
        found += [StageMessage(micro, place, b - a) for micro, (a, b) in enumerate(parts)]
    return sorted(found, key=lambda message: (message.micro, message.place))


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
        self._taken[id] = self._free.pop() if self._free else Pass(self._ops, Workspace(self._ops))
        return self._taken[id]

    def give(self, id: Id) -> None:
        self._free.append(self._taken.pop(id))


@dataclass(slots=True)
class MessageSlot:
    """The memory of a message on its way through this rank.

    activations, gradient: from and to the rank before
    onward:     the activations to the next rank, and their gradient; None if this rank has the loss
    expected:   the message that ``activations`` waits for
    ctx, tapes: from forward to backward
    """

    activations: ActivationMessage
    gradient: ActivationMessage
    onward: tuple[ActivationMessage, ActivationMessage] | None = None
    expected: StageMessage | None = None
    ctx: Pass = field(init=False)
    tapes: Tapes = field(init=False)


class MessageQueue:
    """The messages of an iteration that this rank has not finished.

    due:     those to come, in order
    onward:  those on the ranks behind, in order
    by_place: whether the first of each place may be next, and not the first of all alone
    """

    def __init__(self, messages: list[StageMessage], by_place: bool):
        self.due, self.onward, self._by_place = list(messages), list[StageMessage](), by_place
        self.total, self.done = len(messages), 0

    def next_of(self, messages: list[StageMessage]) -> list[StageMessage]:
        """Those of ``messages`` that may be handled next."""
        if not self._by_place:
            return messages[:1]
        first: dict[int, StageMessage] = {}
        for message in messages:
            first.setdefault(message.place, message)
        return list(first.values())


class FcStage(PipelineStage):
    """Runs the iterations of a rank with fully connected layers. ``rate``: iteration → learning rate"""

    def __init__(
        self, exchange: Pipeline, ops: Ops, loss: SoftmaxCrossEntropy, rate: Callable[[int], float], cut: BatchCut
    ):
        self._exchange, self._ops, self._loss, self._rate, self._cut = exchange, ops, loss, rate, cut
        self._part, self._mail = exchange.part, exchange.mail
        self._depth = min(exchange.in_flight, cut.parts)
        self._in, self._out = self._part.input_shape, self._part.shapes[self._part.output]
        self._slots = [[self._make_slot(place) for _ in range(self._depth)] for place in range(cut.places)]
        self.pool = TapePool(ops, self._depth * cut.places)
        self._queue = MessageQueue([], exchange.each)

    def _make_slot(self, place: int) -> MessageSlot:
        routes, own, mail, capacity = self._exchange.routes, self._exchange.own, self._mail, self._cut.capacity
        before, width = routes[own - 1].ranks[place if own == 1 else 0], element_count(self._in)
        slot = MessageSlot(mail.forward(before, place, capacity, width), mail.back(before, place, capacity, width))
        if own < len(routes) - 1:
            (behind,), width = routes[own + 1].ranks, element_count(self._out)
            onward = mail.onward(slot.activations, behind, capacity, width)
            slot.onward = onward, mail.back(behind, place, capacity, width)
        return slot

    def begin(self, iteration: StageIteration) -> None:
        self._iteration = iteration

    def instructions(self, micro_batches: int) -> tuple:
        """An iteration without micro-batches of this rank's own."""
        return (Serve(), ReduceLoss(), CheckLoss(), Update())

    def run(self, instruction: object) -> None:
        if isinstance(instruction, Serve):
            self._serve()

    def rehearse(self) -> None:
        """Run forward and backward on one example of zeros."""
        id = (-1, 0, 0)
        ctx, ops = self._tape(id), self._ops
        ctx.examples = ops.zeros((1,), "int64")
        y, tapes = self._part.forward(ctx, ops.zeros((1, *self._in), ops.active))
        self._loss.backward(
            ctx, ops.zeros((1, *self._out), ops.active), ops.zeros((1,), "int32"), self._iteration.totals, 1.0
        )
        for _ in self._part.backward(ctx, y, tapes):
            pass
        self.pool.give(id)

    def _id(self, message: StageMessage) -> Id:
        return self._iteration.batch.iteration, message.place, message.micro

    def _tape(self, id: Id) -> Pass:
        ctx = self.pool.take(id)
        ctx.key, ctx.total = self._iteration.ctx.key, self._iteration.batch.total
        return ctx

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────
    def _serve(self) -> None:
        self._queue = MessageQueue(messages_of(self._iteration.batch.total, self._cut), self._exchange.each)
        for message in self._queue.due:
            if message.micro < self._depth:
                self._expect(message)
        while self._queue.due or self._queue.onward:
            self._wait_for_one()()

    def _wait_for_one(self) -> Callable[[], None]:
        """The handler of the first message that arrives."""
        found: list[Callable[[], None]] = []

        def arrived() -> bool:
            found.extend(handle for held, handle, _ in self._awaited() if held.current and held.current.test())
            return bool(found)

        self._mail.wait_until(arrived, self._describe_awaited)
        return found[0]

    def _awaited(self) -> Iterator[tuple[ActivationMessage, Callable[[], None], StageMessage]]:
        """The messages that may arrive now, with their handlers; gradients first."""
        for message in self._queue.next_of(self._queue.onward):
            slot = self._slot(message)
            assert slot.onward is not None, "its activations have gone to the next rank"
            yield slot.onward[1], partial(self._take_gradient, message, slot, *slot.onward), message
        for message in self._queue.next_of(self._queue.due):
            slot = self._slot(message)
            if slot.expected is message:
                yield slot.activations, partial(self._forward, message, slot), message

    def _describe_awaited(self) -> str:
        return "; ".join(
            f"rank {held.peer} to send {describe_id(self._id(message))}" for held, _, message in self._awaited()
        )

    def _slot(self, message: StageMessage) -> MessageSlot:
        return self._slots[message.place][message.micro % self._depth]

    def _expect(self, message: StageMessage) -> None:
        slot = self._slot(message)
        slot.expected = message
        self._mail.expect(slot.activations, message.count)

    # ── forward and backward ──────────────────────────────────────────────────────────────────────────────────
    def _forward(self, message: StageMessage, slot: MessageSlot) -> None:
        self._queue.due.remove(message)
        slot.expected, count, id, held = None, message.count, self._id(message), slot.activations
        self._mail.check(held, id)
        slot.ctx = self._tape(id)
        slot.ctx.examples = held.examples(count)
        y, slot.tapes = self._part.forward(slot.ctx, held.array(count, self._in))
        if slot.onward is not None:
            onward, gradient = slot.onward
            self._ops.copy(y, onward.array(count, self._out))
            self._mail.expect(gradient, count)
            self._mail.send(onward, count)
            self._queue.onward.append(message)
        else:
            assert held.labels is not None, "a message forward has labels"
            totals, denominator = self._iteration.totals, self._iteration.denominator
            self._backward(message, slot, self._loss.backward(slot.ctx, y, held.labels[:count], totals, denominator))

    def _take_gradient(
        self, message: StageMessage, slot: MessageSlot, onward: ActivationMessage, gradient: ActivationMessage
    ) -> None:
        self._queue.onward.remove(message)
        self._mail.check(gradient, self._id(message))
        self._mail.wait(onward)
        self._backward(message, slot, gradient.array(message.count, self._out))

    def _backward(self, message: StageMessage, slot: MessageSlot, dy: Array) -> None:
        id, count, queue, each = self._id(message), message.count, self._queue, self._exchange.each
        slot.ctx.accumulate = queue.done > 0 and not each
        for _ in self._part.backward(slot.ctx, dy, slot.tapes):
            pass
        self._mail.wait(slot.gradient)
        self._mail.address(slot.gradient, id)
        assert slot.tapes.dx is not None, "this part follows another"
        self._ops.copy(slot.tapes.dx, slot.gradient.array(count, self._in))
        self._mail.send(slot.gradient, count)
        self.pool.give(id)
        if each:
            batch = self._iteration.batch
            self._exchange.learn(self._rate(batch.iteration), count / batch.total, queue.done, queue.total)
        queue.done += 1
        place, micro = message.place, message.micro + self._depth
        for following in queue.due:
            if (following.place, following.micro) == (place, micro):
                self._expect(following)
