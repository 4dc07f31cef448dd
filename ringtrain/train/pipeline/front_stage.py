"""Runs iterations on a rank that has images: it sends activations to the ranks with fully connected layers, which serve
messages as they come (:mod:`ringtrain.train.pipeline.fc_stage`).

::

    in flight: 2, micro-batches: 4
    front    send 0   send 1   recv 0   send 2   recv 1   send 3   recv 2   recv 3   reduce   check   update
    behind      serve: forward 0, backward 0, forward 1, …                           reduce   check   update
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringtrain.data.batches.sampler import largest_part
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.model_parallel.activation_messages import GOODBYE, SUMS, ActivationMessage, GroupRows, Header
from ringtrain.exchange.model_parallel.pipeline import IN_FLIGHT
from ringtrain.exchange.model_parallel.pipeline_behind import PipelineBehind
from ringtrain.exchange.model_parallel.pipeline_front import PipelineFront
from ringtrain.nn.base import Pass
from ringtrain.nn.graph import Tapes
from ringtrain.nn.losses import LabelForm, Loss
from ringtrain.nn.shapes import element_count
from ringtrain.nn.workspace import Workspace
from ringtrain.ops.base import Ops
from ringtrain.train.pipeline.fc_messages import BatchCut, describe_awaited
from ringtrain.train.pipeline.fc_stage import FcStage
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.instructions import WITHOUT_EXAMPLES, CheckLoss, ReduceLoss, Update, without_others
from ringtrain.train.step.stage import PipelineStage, StageIteration


@dataclass(frozen=True, slots=True)
class SendForward:
    """Run forward on a micro-batch, and send its activations."""

    doing = "forward, and sending activations"
    micro: int


@dataclass(frozen=True, slots=True)
class RecvBackward:
    """Wait for its gradient, and run backward. ``last``: gradients are final then, and the exchange gets each span."""

    doing = "waiting for a gradient, and backward"
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
    """Runs the iterations of a rank in front. A rank without examples, a dedicated server, sends no message."""

    def __init__(
        self,
        exchange: PipelineFront,
        rank: int,
        ops: Ops,
        feed: DeviceInput,
        cut: BatchCut,
        labels: LabelForm,
        recompute: bool,
    ):
        self._exchange, self._ops, self._feed, self._recompute = exchange, ops, feed, recompute
        self._part, self._mail, self._place = exchange.table.part, exchange.mail, exchange.facts.roles.part(rank)
        self._shape = self._part.shapes[self._part.output]
        self._in_flight: list[InFlight] = []
        self._labels = labels
        if self._place is not None:
            behind = exchange.table.behind
            self._headers = self._mail.header_to(behind, self._place)
            depth = min(IN_FLIGHT, cut.parts)
            self._in_flight = [self._make_slot(behind, self._place, cut.capacity) for _ in range(depth)]
        if exchange.apart:
            exchange.serving.say_goodbye = self._say_goodbye

    def _make_slot(self, behind: Sequence[int], place: int, capacity: int) -> InFlight:
        memory = behind, place, GroupRows(), capacity, element_count(self._shape)
        ctx = Pass(self._ops, Workspace(self._ops), recompute=self._recompute)
        return InFlight(ctx, self._mail.forward(*memory, self._labels), self._mail.back(*memory))

    def begin(self, iteration: StageIteration) -> None:
        self._iteration, self._sums = iteration, np.zeros(SUMS)
        for slot in self._in_flight:
            slot.ctx.key = iteration.ctx.key

    def instructions(self, micro_batches: int) -> tuple:
        work = front_instructions(micro_batches, len(self._in_flight))
        return without_others(work) if self._exchange.facts.dynamic_batches else work

    def run(self, instruction: object) -> None:
        match instruction:
            case SendForward(micro):
                self._send(micro, self._slot(micro))
            case RecvBackward(micro, last):
                self._recv(micro, self._slot(micro), last)

    def rehearse(self) -> None:
        """Do nothing: the parts have the same kernels as the whole network."""

    def _slot(self, micro: int) -> InFlight:
        return self._in_flight[micro % len(self._in_flight)]

    def _header(self, micro: int) -> Header:
        batch, (start, stop) = self._iteration.batch, self._iteration.micro[micro]
        assert self._place is not None, "a rank that sends has a place"
        return Header(batch.iteration, self._place, micro, stop - start, batch.total, batch.valid_total)

    def _send(self, micro: int, slot: InFlight) -> None:
        (start, stop), ops, message = self._iteration.micro[micro], self._ops, slot.activations
        count = stop - start
        x, labels, examples = self._feed.load(slot.ctx.space, self._iteration.batch, start, stop)
        slot.ctx.examples, slot.ctx.total = examples, self._iteration.ctx.total
        y, slot.tapes = self._part.forward(slot.ctx, x, need=self._exchange.before_read)
        self._mail.wait(message)
        assert message.examples is not None and message.labels is not None, "a message forward"
        ops.copy(examples, message.examples[:count])
        ops.copy(labels, message.labels[:count])
        ops.copy(y, message.array(count, self._shape))
        self._mail.expect(slot.gradient, count)
        self._headers.send(self._header(micro))
        self._mail.send(message, count)

    def _recv(self, micro: int, slot: InFlight, last: bool) -> None:
        header = self._header(micro)
        self._await_gradient(slot.gradient, header)
        self._mail.check(slot.gradient, header.id, header.count)
        self._sums += slot.gradient.sums(header.count)
        if last:
            self._ops.upload(self._sums, self._iteration.totals)
        slot.ctx.accumulate = micro > 0
        dy = slot.gradient.array(header.count, self._shape)
        # The loss was divided by the labels of the batch. A rank with weights of its own learns from the mean of its
        # own examples.
        if self._iteration.denominator != header.valid:
            self._ops.scale(dy, header.valid / self._iteration.denominator)
        for span in self._part.backward(slot.ctx, dy, slot.tapes):
            if last:
                self._exchange.grad_ready(span)

    def _await_gradient(self, gradient: ActivationMessage, header: Header) -> None:
        """Serve other ranks, if this one is a server, until the gradient has come."""

        def come() -> bool:
            self._exchange.serving.poll()
            return gradient.has_come

        self._mail.wait_until(come, lambda: describe_awaited(gradient.peers, header.id))

    def _say_goodbye(self) -> None:
        """Tell the ranks behind that no message comes until the next meeting is over."""
        if self._place is not None:
            self._headers.send(Header(0, self._place, 0, GOODBYE))
            self._headers.wait()


def stage_of(
    exchange: Exchange,
    ops: Ops,
    feed: DeviceInput,
    loss: Loss,
    labels: LabelForm,
    rate: Callable[[int], float],
    *,
    rank: int,
    seed: int,
    batch: int,
    accumulate: int,
    grain: int,
    recompute: bool,
) -> PipelineStage | None:
    """The stage of rank ``rank`` of the pipeline; None if each rank holds the whole network.

    labels:     the form of one example's
    rate:       iteration → learning rate
    seed:       of the run's random numbers
    batch:      the most examples of an iteration, over all ranks
    accumulate: micro-batches of a rank
    grain:      examples that stay together
    recompute:  whether activations are computed again in backward
    """
    if not isinstance(exchange, PipelineFront | PipelineBehind):
        return None
    places = len(exchange.facts.roles.trainers)
    capacity = largest_part(largest_part(batch, places, grain), accumulate, grain)
    cut = BatchCut(places, accumulate, grain, capacity)
    if isinstance(exchange, PipelineFront):
        return FrontStage(exchange, rank, ops, feed, cut, labels, recompute)
    exchange.serving = stage = FcStage(exchange, ops, loss, labels, rate, cut, seed)
    return stage
