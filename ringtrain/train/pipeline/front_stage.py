"""Runs iterations on a rank that has images: it sends activations to the ranks with fully connected layers, which serve
messages as they come (:mod:`ringtrain.train.pipeline.fc_stage`).

::

    in flight: 2, micro-batches: 4
    front    send 0   send 1   recv 0   send 2   recv 1   send 3   recv 2   recv 3   reduce   check   update
    behind      serve: forward 0, backward 0, forward 1, …                           reduce   check   update
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ringtrain.data.batches.sampler import largest_part
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.model_parallel.activation_messages import ActivationMessage
from ringtrain.exchange.model_parallel.pipeline import Pipeline
from ringtrain.nn.base import Pass, Workspace
from ringtrain.nn.graph import Tapes
from ringtrain.nn.loss import SoftmaxCrossEntropy
from ringtrain.nn.shapes import element_count
from ringtrain.ops.base import Ops
from ringtrain.train.pipeline.fc_stage import BatchCut, FcStage
from ringtrain.train.step.instructions import WITHOUT_EXAMPLES, CheckLoss, ReduceLoss, Update
from ringtrain.train.step.slow_rank import Feed
from ringtrain.train.step.stage import PipelineStage, StageIteration


@dataclass(frozen=True, slots=True)
class SendForward:
    """Run forward on a micro-batch, and send its activations."""

    doing = "forward"
    micro: int


@dataclass(frozen=True, slots=True)
class RecvBackward:
    """Wait for its gradient, and run backward. ``last``: gradients are final then, and the exchange gets each span."""

    doing = "backward"
    micro: int
    last: bool


def front_instructions(micro_batches: int, in_flight: int) -> tuple:
    """An iteration of a rank with images, with up to ``in_flight`` micro-batches on other ranks. The sum over ranks
    comes last: another rank has the loss, and has it late."""
    if micro_batches == 0:
        return WITHOUT_EXAMPLES
    ahead = min(in_flight, micro_batches)
    work: list = [SendForward(micro) for micro in range(ahead)]
    for micro in range(micro_batches):
        work.append(RecvBackward(micro, last=micro == micro_batches - 1))
        if micro + ahead < micro_batches:
            work.append(SendForward(micro + ahead))
    return (*work, ReduceLoss(), CheckLoss(), Update())


@dataclass(slots=True)
class InFlight:
    """A micro-batch that may be on other ranks: its tape, and the memory of its two messages."""

    ctx: Pass
    activations: ActivationMessage
    gradient: ActivationMessage
    tapes: Tapes = field(init=False)


class FrontStage(PipelineStage):
    """Runs the iterations of a rank with images."""

    def __init__(self, exchange: Pipeline, ops: Ops, feed: Feed, cut: BatchCut):
        self._exchange, self._ops, self._feed = exchange, ops, feed
        self._part, self._mail, self._place = exchange.part, exchange.mail, exchange.place
        self._shape = exchange.part.shapes[exchange.part.output]
        self._in_flight = [self._make_slot(cut.capacity) for _ in range(min(exchange.in_flight, cut.parts))]

    def _make_slot(self, capacity: int) -> InFlight:
        peer, width = self._exchange.routes[1].ranks[0], element_count(self._shape)
        activations = self._mail.forward(peer, self._place, capacity, width)
        gradient = self._mail.back(peer, self._place, capacity, width)
        return InFlight(Pass(self._ops, Workspace(self._ops)), activations, gradient)

    def begin(self, iteration: StageIteration) -> None:
        self._iteration = iteration
        for slot in self._in_flight:
            slot.ctx.key, slot.ctx.total = iteration.ctx.key, iteration.batch.total

    def instructions(self, micro_batches: int) -> tuple:
        return front_instructions(micro_batches, len(self._in_flight))

    def run(self, instruction: object) -> None:
        match instruction:
            case SendForward(micro):
                self._send(micro, self._slot(micro))
            case RecvBackward(micro, last):
                self._recv(micro, self._slot(micro), last)

    def rehearse(self) -> None:
        """Do nothing: the whole network's kernels are those of its parts."""

    def _slot(self, micro: int) -> InFlight:
        return self._in_flight[micro % len(self._in_flight)]

    def _id(self, micro: int) -> tuple[int, int, int]:
        return self._iteration.batch.iteration, self._place, micro

    def _send(self, micro: int, slot: InFlight) -> None:
        (start, stop), ops, message = self._iteration.micro[micro], self._ops, slot.activations
        count = stop - start
        x, labels, examples = self._feed.load(slot.ctx.space, self._iteration.batch, start, stop)
        slot.ctx.examples = examples
        y, slot.tapes = self._part.forward(slot.ctx, x, need=self._exchange.before_read)
        self._mail.wait(message)
        self._mail.address(message, self._id(micro))
        ops.copy(examples, message.examples(count))
        assert message.labels is not None, "a message forward has labels"
        ops.copy(labels, message.labels[:count])
        ops.copy(y, message.array(count, self._shape))
        self._mail.expect(slot.gradient, count)
        self._mail.send(message, count)

    def _recv(self, micro: int, slot: InFlight, last: bool) -> None:
        start, stop = self._iteration.micro[micro]
        self._mail.wait(slot.gradient)
        self._mail.check(slot.gradient, self._id(micro))
        slot.ctx.accumulate = micro > 0
        dy = slot.gradient.array(stop - start, self._shape)
        for span in self._part.backward(slot.ctx, dy, slot.tapes):
            if last:
                self._exchange.grad_ready(span)


def stage_of(
    exchange: Exchange,
    ops: Ops,
    feed: Feed,
    loss: SoftmaxCrossEntropy,
    rate: Callable[[int], float],
    *,
    batch: int,
    accumulate: int,
    grain: int,
) -> PipelineStage | None:
    """This rank's stage of the pipeline; None if each rank holds the whole network.

    rate:       iteration → learning rate
    batch:      the most examples of an iteration, over all ranks
    accumulate: micro-batches of a rank
    grain:      examples that stay together
    """
    if not isinstance(exchange, Pipeline):
        return None
    places = len(exchange.routes[0].ranks)
    capacity = largest_part(largest_part(batch, places, grain), accumulate, grain)
    cut = BatchCut(places, accumulate, grain, capacity)
    if exchange.own == 0:
        return FrontStage(exchange, ops, feed, cut)
    return FcStage(exchange, ops, loss, rate, cut)
