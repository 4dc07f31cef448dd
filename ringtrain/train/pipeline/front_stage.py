"""What an iteration is where ranks hold parts of the network (:mod:`ringtrain.exchange.model_parallel.pipeline`): a
rank in front has images and sends activations away; one behind it serves messages as they come
(:mod:`ringtrain.train.pipeline.fc_stage`).

::

    in flight: 2, micro-batches: 4
    front    away 0   away 1   home 0   away 2   home 1   away 3   home 2   home 3   share   check   update
    behind      serve: forward 0, backward 0, forward 1, …                           share   check   update
"""

from dataclasses import dataclass

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
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.instructions import CheckLoss, NoExamples, ReduceLoss, Update
from ringtrain.train.step.stage import PipelineStage, StageIteration


@dataclass(frozen=True, slots=True)
class SendForward:
    """Run forward on a micro-batch, and send its activations on."""

    doing = "forward"
    micro: int


@dataclass(frozen=True, slots=True)
class RecvBackward:
    """Wait for its gradient, and run backward. ``last``: gradients are final now, and are announced."""

    doing = "backward"
    micro: int
    last: bool


def front_instructions(micro_batches: int, in_flight: int) -> tuple:
    """An iteration of a rank with images: the next micro-batch is sent before the gradient of one is waited for, so
    that ``in_flight`` of them are away. The sum over ranks comes last: others have the loss, and have it late."""
    if micro_batches == 0:
        return (ReduceLoss(), NoExamples(), CheckLoss(), Update())
    ahead = min(in_flight, micro_batches)
    work: list = [SendForward(micro) for micro in range(ahead)]
    for micro in range(micro_batches):
        work.append(RecvBackward(micro, last=micro == micro_batches - 1))
        if micro + ahead < micro_batches:
            work.append(SendForward(micro + ahead))
    return (*work, ReduceLoss(), CheckLoss(), Update())


@dataclass(slots=True)
class InFlight:
    """One of the micro-batches that may be away: its tape, and the memory of its messages."""

    ctx: Pass
    away: ActivationMessage
    home: ActivationMessage
    tapes: Tapes | None = None


class FrontStage(PipelineStage):
    def __init__(self, exchange: Pipeline, ops: Ops, feed: DeviceInput, cut: BatchCut):
        self._exchange, self._ops, self._feed = exchange, ops, feed
        self._part, self._mail, self._place = exchange.part, exchange.mail, exchange.place
        self._shape = exchange.part.shapes[exchange.part.output]
        self._trips = [self._make_trip(cut.capacity) for _ in range(min(exchange.in_flight, cut.parts))]

    def _make_trip(self, capacity: int) -> InFlight:
        peer, width = self._exchange.routes[1].ranks[0], element_count(self._shape)
        away = self._mail.forward(peer, self._place, capacity, width)
        home = self._mail.back(peer, self._place, capacity, width)
        return InFlight(Pass(self._ops, Workspace(self._ops)), away, home)

    def begin(self, round: StageIteration) -> None:
        self._round = round
        for trip in self._trips:
            trip.ctx.key, trip.ctx.total = round.ctx.key, round.batch.total

    def instructions(self, micro_batches: int) -> tuple:
        return front_instructions(micro_batches, len(self._trips))

    def run(self, instruction) -> None:
        match instruction:
            case SendForward(micro):
                self._send(micro, self._trip(micro))
            case RecvBackward(micro, last):
                self._take(micro, self._trip(micro), last)

    def rehearse(self) -> None:
        """The whole network's kernels are those of its parts."""

    def _trip(self, micro: int) -> InFlight:
        return self._trips[micro % len(self._trips)]

    def _id(self, micro: int) -> tuple[int, int, int]:
        return self._round.batch.iteration, self._place, micro

    def _send(self, micro: int, trip: InFlight) -> None:
        (start, stop), ops, away = self._round.micro[micro], self._ops, trip.away
        count = stop - start
        x, labels, trip.ctx.examples = self._feed.load(trip.ctx.space, self._round.batch, start, stop)
        y, trip.tapes = self._part.forward(trip.ctx, x, need=self._exchange.before_read)
        self._mail.wait(away)
        self._mail.address(away, self._id(micro))
        ops.copy(trip.ctx.examples, away.examples(count))
        ops.copy(labels, away.labels[:count])
        ops.copy(y, away.array(count, self._shape))
        self._mail.expect(trip.home, count)
        self._mail.send(away, count)

    def _take(self, micro: int, trip: InFlight, last: bool) -> None:
        start, stop = self._round.micro[micro]
        self._mail.wait(trip.home)
        self._mail.check(trip.home, self._id(micro))
        trip.ctx.accumulate = micro > 0
        dy = trip.home.array(stop - start, self._shape)
        for span in self._part.backward(trip.ctx, dy, trip.tapes):
            if last:
                self._exchange.grad_ready(span)


def stage_of(
    exchange: Exchange,
    ops: Ops,
    feed: DeviceInput,
    loss: SoftmaxCrossEntropy,
    rate,
    *,
    batch: int,
    accumulate: int,
    grain: int,
) -> PipelineStage | None:
    """What this rank does of an iteration where ranks hold parts of the network; None where each holds all of it.

    rate:       iteration → learning rate
    batch:      examples of an iteration, at most, over all ranks
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
