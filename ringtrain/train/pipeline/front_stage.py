"""Runs iterations on a rank that has images: it sends activations to the ranks with fully connected layers, which serve
messages as they come (:mod:`ringtrain.train.pipeline.fc_stage`).

::

    in flight: 2, micro-batches: 4
    front    send 0   send 1   recv 0   send 2   recv 1   send 3   recv 2   recv 3   reduce   check   update
    behind      serve: forward 0, backward 0, forward 1, …                           reduce   check   update
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.config.record import TrainConfig
from ringtrain.data.batches.sampler import largest_part
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.model_parallel.activation_messages import SUMS, GroupRows, Header
from ringtrain.exchange.model_parallel.pipeline import IN_FLIGHT, PipelineBehind, PipelineFront
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Pass
from ringtrain.nn.losses import LabelForm, Loss
from ringtrain.ops.base import Ops
from ringtrain.train.pipeline.fc_messages import BatchCut, MessageSlot, describe_awaited
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
        self._exchange, self._ops, self._feed = exchange, ops, feed
        self._part, self._mail, place = exchange.table.part, exchange.mail, exchange.facts.roles.part(rank)
        self._slots: list[MessageSlot] = []
        if place is None:
            return
        self._place, behind, shape = place, exchange.table.behind, self._part.shapes[self._part.output]
        self._headers = self._mail.headers_to(behind, place)
        for number in range(min(IN_FLIGHT, cut.parts)):
            slot = MessageSlot(number)
            slot.ctx = Pass(ops, Workspace(ops), recompute=recompute)
            slot.behind = self._mail.crossing(behind, place, GroupRows(), cut.capacity, shape, labels)
            self._slots.append(slot)
        if exchange.apart:
            exchange.say_goodbye = lambda: self._mail.say_goodbye(self._headers, place)

    def begin(self, iteration: StageIteration) -> None:
        self._iteration, self._sums = iteration, np.zeros(SUMS)
        for slot in self._slots:
            slot.ctx.key = iteration.ctx.key

    def instructions(self, micro_batches: int) -> tuple:
        work = front_instructions(micro_batches, len(self._slots))
        return without_others(work) if self._exchange.facts.dynamic_batches else work

    def run(self, instruction: object) -> None:
        match instruction:
            case SendForward(micro):
                self._send(micro, self._slots[micro % len(self._slots)])
            case RecvBackward(micro, last):
                self._recv(micro, self._slots[micro % len(self._slots)], last)

    def rehearse(self) -> None:
        """Do nothing: the parts have the same kernels as the whole network."""

    def _header(self, micro: int) -> Header:
        batch, (start, stop) = self._iteration.batch, self._iteration.micro[micro]
        return Header(batch.iteration, self._place, micro, stop - start, batch.total, batch.valid_total)

    def _send(self, micro: int, slot: MessageSlot) -> None:
        header, ops = self._header(micro), self._ops
        x, labels, examples = self._feed.load(slot.ctx.space, self._iteration.batch, *self._iteration.micro[micro])
        slot.ctx.examples, slot.ctx.total = examples, self._iteration.ctx.total
        y, slot.tapes = self._part.forward(slot.ctx, x, need=self._exchange.before_read)
        for array, sent in zip((examples, labels), slot.behind.forward.batch(header.count), strict=True):
            ops.copy(array, sent)
        self._mail.send_on(slot.behind, header, y, self._headers)

    def _recv(self, micro: int, slot: MessageSlot, last: bool) -> None:
        header, message = self._header(micro), slot.behind.back

        def come() -> bool:
            self._exchange.serving.poll()  # this rank may be a server
            return message.has_come

        self._mail.wait_until(come, lambda: describe_awaited(message.peers, header.id))
        dy, sums = self._mail.answer(slot.behind, header)
        self._sums += sums
        if last:
            self._ops.upload(self._sums, self._iteration.totals)
        slot.ctx.accumulate = micro > 0
        # The loss was divided by the labels of the batch. A rank with weights of its own learns from the mean of its
        # own examples.
        if self._iteration.denominator != header.valid:
            self._ops.scale(dy, header.valid / self._iteration.denominator)
        for span in self._part.backward(slot.ctx, dy, slot.tapes):
            if last:
                self._exchange.grad_ready(span)


def stage_of(
    config: TrainConfig,
    exchange: Exchange,
    rank: int,
    ops: Ops,
    feed: DeviceInput,
    loss: Loss,
    labels: LabelForm,
    rate: Callable[[int], float],
    grain: int,
) -> PipelineStage | None:
    """The stage of rank ``rank`` of the pipeline; None if each rank holds the whole network.

    labels: the form of one example's
    rate:   iteration → learning rate
    grain:  examples that stay together
    """
    if not isinstance(exchange, PipelineFront | PipelineBehind):
        return None
    run, places = config.run, len(exchange.facts.roles.trainers)
    capacity = largest_part(largest_part(run.batch, places, grain), run.accumulate, grain)
    cut = BatchCut(places, run.accumulate, grain, capacity)
    if isinstance(exchange, PipelineFront):
        return FrontStage(exchange, rank, ops, feed, cut, labels, config.device.recompute)
    exchange.serving = stage = FcStage(exchange, ops, loss, labels, rate, cut, run.seed)
    return stage
