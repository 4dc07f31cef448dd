"""A rank that holds fully connected layers serves messages: activations that come are run forward and sent on, or to
the loss; gradients that come back are run backward and sent back. Each message has a tape of its own from one to the
other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ringtrain.data.batches.sampler import batch_part
from ringtrain.exchange.model_parallel.activation_messages import ActivationMessage, Id, say
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
    """How a batch is cut: into ``places``, one for each rank with images, and each of those into up to ``parts``
    micro-batches of whole grains, of at most ``capacity`` examples."""

    places: int
    parts: int
    grain: int
    capacity: int


@dataclass(frozen=True, slots=True)
class StageMessage:
    micro: int
    place: int
    count: int  # examples

    def id(self, iteration: int) -> Id:
        return iteration, self.place, self.micro


def messages_of(total: int, cut: BatchCut) -> list[StageMessage]:
    """All messages of an iteration of ``total`` examples, in the order in which they are taken."""
    found = []
    for place in range(cut.places):
        start, stop = batch_part(total, place, cut.places, cut.grain)
        parts = micro_batches(stop - start, cut.parts, cut.grain)
        found += [StageMessage(micro, place, b - a) for micro, (a, b) in enumerate(parts)]
    return sorted(found, key=lambda message: (message.micro, message.place))


class TapePool:
    """Tapes by message: made when they are first needed, at most ``limit``, and used again.

    Raises RuntimeError where a message has one already, or more are wanted.
    """

    def __init__(self, ops: Ops, limit: int):
        self._ops, self._limit = ops, limit
        self._free: list[Pass] = []
        self._taken: dict[Id, Pass] = {}

    @property
    def made(self) -> int:
        return len(self._free) + len(self._taken)

    def take(self, id: Id) -> Pass:
        if id in self._taken:
            raise RuntimeError(f"{say(id)} has a tape already")
        if not self._free and self.made == self._limit:
            raise RuntimeError(f"{say(id)} wants a tape, and all {self._limit} are taken")
        self._taken[id] = self._free.pop() if self._free else Pass(self._ops, Workspace(self._ops))
        return self._taken[id]

    def give(self, id: Id) -> None:
        self._free.append(self._taken.pop(id))


@dataclass(slots=True)
class MessageSlot:
    """The memory of a message on its way through this rank, and where it is.

    came, reply:   from and to the rank before
    onward, back:  to and from the rank behind; None where this one has the loss
    expected:      what ``came`` waits for
    ctx, tapes:    from forward to backward
    """

    came: ActivationMessage
    reply: ActivationMessage
    onward: ActivationMessage | None = None
    back: ActivationMessage | None = None
    expected: StageMessage | None = None
    ctx: Pass | None = None
    tapes: Tapes | None = None


class FcStage(PipelineStage):
    """``rate``: iteration → learning rate"""

    def __init__(self, exchange: Pipeline, ops: Ops, loss: SoftmaxCrossEntropy, rate, cut: BatchCut):
        self._exchange, self._ops, self._loss, self._rate, self._cut = exchange, ops, loss, rate, cut
        self._part, self._mail, self._each = exchange.part, exchange.mail, exchange.each
        self._depth = min(exchange.in_flight, cut.parts)
        self._in, self._out = self._part.input_shape, self._part.shapes[self._part.output]
        self._slots = [[self._make_slot(place) for _ in range(self._depth)] for place in range(cut.places)]
        self.pool = TapePool(ops, self._depth * cut.places)
        self._due: list[StageMessage] = []  # to come, in order
        self._owed: list[StageMessage] = []  # gone on, to come back
        self._next_of: dict[tuple[int, int], StageMessage] = {}  # by place and micro-batch
        self._all = self._done = 0  # messages of the iteration; those that have been served

    def _make_slot(self, place: int) -> MessageSlot:
        routes, own, mail, capacity = self._exchange.routes, self._exchange.own, self._mail, self._cut.capacity
        before = routes[own - 1].ranks[place if own == 1 else 0]
        came = mail.forward(before, place, capacity, element_count(self._in))
        reply = mail.back(before, place, capacity, element_count(self._in))
        if own == len(routes) - 1:
            return MessageSlot(came, reply)
        (behind,), width = routes[own + 1].ranks, element_count(self._out)
        return MessageSlot(
            came, reply, mail.onward(came, behind, capacity, width), mail.back(behind, place, capacity, width)
        )

    def begin(self, round: StageIteration) -> None:
        self._round = round

    def instructions(self, micro_batches: int) -> tuple:
        """It has no micro-batches of its own."""
        return (Serve(), ReduceLoss(), CheckLoss(), Update())

    def run(self, instruction) -> None:
        match instruction:
            case Serve():
                self._serve()

    def rehearse(self) -> None:
        """A forward and a backward pass on one example of zeros."""
        id = (-1, 0, 0)
        ctx, ops = self._tape(id), self._ops
        ctx.examples = ops.zeros((1,), "int64")
        y, tapes = self._part.forward(ctx, ops.zeros((1, *self._in), ops.active))
        self._loss.backward(
            ctx, ops.zeros((1, *self._out), ops.active), ops.zeros((1,), "int32"), self._round.totals, 1.0
        )
        for _ in self._part.backward(ctx, y, tapes):
            pass
        self.pool.give(id)

    def _tape(self, id: Id) -> Pass:
        ctx = self.pool.take(id)
        ctx.key, ctx.total = self._round.ctx.key, self._round.batch.total
        return ctx

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────
    def _serve(self) -> None:
        messages = messages_of(self._round.batch.total, self._cut)
        self._next_of = {(message.place, message.micro): message for message in messages}
        self._due, self._owed, self._all, self._done = messages, [], len(messages), 0
        for message in messages:
            if message.micro < self._depth:
                self._expect(message)
        while self._due or self._owed:
            self._wait_for_one()()

    def _wait_for_one(self) -> Callable[[], None]:
        """Handle the first message that arrives."""
        found: list[Callable[[], None]] = []

        def come() -> bool:
            found.extend(action for letter, action, _ in self._awaited() if letter.current.test())
            return bool(found)

        self._mail.wait_until(come, self._say_awaited)
        return found[0]

    def _awaited(self) -> Iterator[tuple[ActivationMessage, Callable[[], None], StageMessage]]:
        """The messages that may arrive now, with their handlers; returning ones first."""
        for message in self._heads(self._owed):
            slot = self._slot(message)
            yield slot.back, partial(self._returned, message, slot), message
        for message in self._heads(self._due):
            slot = self._slot(message)
            if slot.expected is message:
                yield slot.came, partial(self._forward, message, slot), message

    def _heads(self, messages: list[StageMessage]) -> list[StageMessage]:
        """The first one; of every place, where order is not held to."""
        if not self._each:
            return messages[:1]
        first: dict[int, StageMessage] = {}
        for message in messages:
            first.setdefault(message.place, message)
        return list(first.values())

    def _say_awaited(self) -> str:
        iteration = self._round.batch.iteration
        return "; ".join(f"rank {letter.peer} to send {say(m.id(iteration))}" for letter, _, m in self._awaited())

    def _slot(self, message: StageMessage) -> MessageSlot:
        return self._slots[message.place][message.micro % self._depth]

    def _expect(self, message: StageMessage) -> None:
        slot = self._slot(message)
        slot.expected = message
        self._mail.expect(slot.came, message.count)

    # ── forward and backward ──────────────────────────────────────────────────────────────────────────────────
    def _forward(self, message: StageMessage, slot: MessageSlot) -> None:
        self._due.remove(message)
        slot.expected, count, id = None, message.count, message.id(self._round.batch.iteration)
        self._mail.check(slot.came, id)
        slot.ctx = self._tape(id)
        slot.ctx.examples = slot.came.examples(count)
        y, slot.tapes = self._part.forward(slot.ctx, slot.came.array(count, self._in))
        if slot.onward is None:
            labels, round = slot.came.labels[:count], self._round
            dy = self._loss.backward(slot.ctx, y, labels, round.totals, round.denominator)
            self._backward(message, slot, dy)
        else:
            self._ops.copy(y, slot.onward.array(count, self._out))
            self._mail.expect(slot.back, count)
            self._mail.send(slot.onward, count)
            self._owed.append(message)

    def _returned(self, message: StageMessage, slot: MessageSlot) -> None:
        self._owed.remove(message)
        self._mail.check(slot.back, message.id(self._round.batch.iteration))
        self._mail.wait(slot.onward)
        self._backward(message, slot, slot.back.array(message.count, self._out))

    def _backward(self, message: StageMessage, slot: MessageSlot, dy) -> None:
        id, count = message.id(self._round.batch.iteration), message.count
        slot.ctx.accumulate = self._done > 0 and not self._each
        for _ in self._part.backward(slot.ctx, dy, slot.tapes):
            pass
        self._mail.wait(slot.reply)
        self._mail.address(slot.reply, id)
        self._ops.copy(slot.tapes.dx, slot.reply.array(count, self._in))
        self._mail.send(slot.reply, count)
        self.pool.give(id)
        if self._each:
            batch = self._round.batch
            self._exchange.learn(self._rate(batch.iteration), count / batch.total, self._done, self._all)
        self._done += 1
        following = self._next_of.get((message.place, message.micro + self._depth))
        if following is not None:
            self._expect(following)
