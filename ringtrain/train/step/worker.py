"""Runs iterations, which are lists of :mod:`ringtrain.train.step.instructions`. It names no strategy: it calls the
interface of the exchange."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ringtrain.data.batches.batches import Batch
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.memory.spans import Span
from ringtrain.memory.workspace import Workspace
from ringtrain.ops.base import Ops
from ringtrain.train.step import instructions as program
from ringtrain.train.step.divergence import Divergence
from ringtrain.train.step.loss_sum import IterationLoss, LossAllReduce
from ringtrain.train.step.partition import BatchPartition, RankBatch
from ringtrain.train.step.passes import ModelPasses, TimedReduction
from ringtrain.train.step.pipeline import PipelineStage
from ringtrain.transport.base import Transport


def no_batch() -> Batch | None:
    """Return None: the next batch is not known."""


@dataclass(slots=True)
class StepHooks:
    """Calls of an iteration that a tracer may replace; ``perform``: runs one instruction."""

    perform: Callable
    before_read: Callable[[Span], None]
    grad_ready: Callable[[Span], None]
    before_iteration: Callable[[int], None] = lambda iteration: None


class Worker:
    """Runs one rank's part of each iteration.

    rate:       iteration → learning rate
    stage:      the instructions of a rank that holds a part of the network; None: the rank holds all of it
    recordable: the update of a world of one rank, which a device records with the passes; None: there is more to do
    """

    def __init__(
        self,
        passes: ModelPasses,
        exchange: Exchange,
        transport: Transport,
        partition: BatchPartition,
        losses: LossAllReduce,
        rate: Callable[[int], float],
        stage: PipelineStage | None = None,
        recordable: OwnedUpdate | None = None,
    ):
        self.passes, self.exchange, self.rate, self.activity = passes, exchange, rate, transport.activity
        self._partition, self._losses, self._stage, self._recordable = partition, losses, stage, recordable
        if recordable is not None:
            recordable.guard = losses.row(0)
        self._divergence = Divergence(exchange, transport, passes, losses)
        usual = program.independent if exchange.facts.dynamic_batches else program.instructions
        self._instructions = stage.instructions if stage else usual
        self.hooks = StepHooks(self.run, exchange.before_read, exchange.grad_ready)
        self.images = self.updates = 0  # examples of this rank; iterations in which it had examples
        self._batch: RankBatch
        self._recent: list[RankBatch] = []  # the last two
        self._outcome: IterationLoss | None = None
        self.activity.layer = lambda: passes.ctx.layer

    @property
    def ops(self) -> Ops:
        return self.passes.ctx.ops

    @property
    def space(self) -> Workspace:
        return self.passes.ctx.space

    @property
    def in_layers_s(self) -> float:
        reduction = self.passes.ctx.add_over_ranks
        return reduction.seconds if isinstance(reduction, TimedReduction) else 0.0

    def untrace(self) -> None:
        """Take the tracer's calls out of the hooks."""
        self.hooks.perform = self.run
        self.hooks.before_read, self.hooks.grad_ready = self.exchange.before_read, self.exchange.grad_ready

    def iterate(self, batch: Batch, following: Callable[[], Batch | None] = no_batch) -> IterationLoss | None:
        """Run one iteration on this rank's part of the global batch. Returns its loss summed over ranks; if ranks may
        be k iterations apart (``facts.max_iteration_lag``), the loss of the iteration k before, or None if there is
        none; on a device without other ranks, the loss of the iteration before; with dynamic batches, the loss of this
        part alone. ``following()``: the next batch, whose upload to the device may start; or None."""
        self.activity.iteration = batch.iteration + 1
        self.hooks.before_iteration(batch.iteration)
        batch = self._partition.own(batch)
        # One recording has the same operations on the same memory in each iteration.
        traced, slowed = self.hooks.perform != self.run, self.passes.feed.pause is not None
        replayed = (
            self._recordable is not None and len(batch.labels) > 0 and batch.mix is None and not (traced or slowed)
        )
        self._begin(batch, no_batch if self._partition.scattered else following, replayed)
        self._recent = [*self._recent[-1:], self._batch]
        count = len(batch.labels)
        self.images += count
        self.updates += count > 0
        self.exchange.before(batch.iteration, count, batch.total)
        self.passes.ctx.total = int(self.exchange.denominator(count, batch.total))
        self.passes.denominator = self._denominator()
        self._outcome = None
        for instruction in program.REPLAYED if replayed else self._instructions(len(self._batch.micro)):
            self.activity.at(instruction.doing)
            self.hooks.perform(instruction)
        self.activity.at("between two iterations")
        self.passes.feed.arrive(batch)
        return self._outcome

    def drain(self) -> list[IterationLoss]:
        """Wait for the losses that :meth:`iterate` has not returned, and return them in order. Collective."""
        return [self._next_outcome() for _ in range(len(self._losses))]

    def rehearse(self, batch: Batch) -> None:
        """Run every kernel of an iteration, so that none is compiled inside one; weights do not change. Not
        collective."""
        ctx = self.passes.ctx
        reduction = ctx.add_over_ranks
        ctx.add_over_ranks = reduction and (lambda numbers: None)
        self._begin(self._partition.blank(batch))
        for micro in range(len(self._batch.micro)):
            self.run(program.Load(micro))
            current = self.passes.micro_batch
            current.dlogits = self.passes.loss_gradient(self.passes.forward(self.hooks.before_read), current.labels)
            for _ in self._backward(micro, last=False):
                pass
        if self._stage is not None:
            self._stage.rehearse()
        self.exchange.rehearse()
        ctx.add_over_ranks = reduction

    def _begin(self, batch: Batch, following: Callable[[], Batch | None] = no_batch, replayed: bool = False) -> None:
        # If passes contain collectives, ranks without examples make these passes too.
        ctx = self.passes.ctx
        keep_empty = self.exchange.facts.within_passes or ctx.add_over_ranks is not None
        self._batch = RankBatch(batch, self._partition.micro(batch, keep_empty), following)
        ctx.total, self.passes.denominator = batch.total, self._denominator()
        if self._recordable is not None and replayed:
            self.passes.begin(batch.iteration, (self._recordable.rate_1, self.rate(batch.iteration)))
            return
        self.passes.begin(batch.iteration)
        self._losses.begin()
        if self._stage is not None:
            self._stage.begin(batch, self._batch.micro, ctx, self._losses.row(0))

    def _denominator(self) -> float:
        """The denominator of the loss. A rank counts labels in proportion to its examples, not its own labels: then the
        mean of ranks, weighted by examples, is the mean over the batch, wherever labels are missing."""
        batch = self._batch.batch
        return self.exchange.denominator(batch.valid_total * len(batch.labels) / batch.total, batch.valid_total)

    def run(self, instruction: object) -> None:
        match instruction:
            case program.Load(micro):
                shards = self._partition.shards
                sums = self._losses.row(shards.start + micro if shards else 0)
                self.passes.load(self._batch.batch, *self._batch.micro[micro], sums)
            case program.Forward(micro):
                current, loss = self.passes.micro_batch, self.passes.loss_gradient
                logits = self.passes.forward(self.hooks.before_read)
                current.dlogits = self.exchange.batches.loss_gradient(micro, logits, current.labels, loss)
                self._prefetch()
            case program.ReduceLoss():
                self._losses.fetch(self._batch.batch)
            case program.Backward(micro, last):
                for span in self._backward(micro, last):
                    if self._partition.shards:
                        self.exchange.shard_grad_ready(span)
                    if last:
                        self._losses.send()
                        self.hooks.grad_ready(span)
                self._prefetch()
            case program.NoExamples():
                self._losses.send()
                for span in self.passes.without_examples():
                    self.hooks.grad_ready(span)
            case program.CheckLoss():
                self._losses.send()
                self._check_due()
            case program.Replay():
                self._replay()
            case program.CheckEarlierLoss():
                self._check_due()
                self._prefetch()
            case program.CheckOwnLoss():
                self._outcome = self._losses.own(self._batch.batch)
                if not math.isfinite(self._outcome.loss_sum):
                    self._divergence.raise_here(self._outcome, self._batch)
            case program.Update():
                iteration = self._batch.batch.iteration
                self.exchange.finish(iteration, self.rate(iteration))
            case _:
                assert self._stage is not None, "a stage has all other instructions"
                self._stage.run(instruction)

    def _replay(self) -> None:
        batch, ctx, feed = self._batch.batch, self.passes.ctx, self.passes.feed
        memory = feed.hold(batch)
        key = memory, tuple(self._batch.micro), ctx.total, self.passes.denominator, ctx.space, ctx.space.replaced
        self.ops.segment((self, *key), self._whole)
        feed.release(batch)

    def _whole(self) -> None:
        """All operations of an iteration of a rank that has no others, on the batch that is held. Its memory is another
        one's with the next batch, so that no part is recorded by itself."""
        passes, ctx, update = self.passes, self.passes.ctx, self._recordable
        assert update is not None, "ranks that have others replay parts of an iteration"
        last = len(self._batch.micro) - 1
        recorded, ctx.recorded = ctx.recorded, False
        try:
            self._losses.begin()
            for micro, cut in enumerate(self._batch.micro):
                passes.take(self._batch.batch, *cut, self._losses.row(0))
                logits = passes.forward(lambda span: None)
                passes.micro_batch.dlogits = passes.loss_gradient(logits, passes.micro_batch.labels)
                for _ in self._backward(micro, micro == last):
                    pass
            update.advance()
            update.apply()
        finally:
            ctx.recorded = recorded

    def _backward(self, micro: int, last: bool) -> Iterator[Span]:
        """Run backward: a shard's gradient replaces the last one in the arena; gradients of micro-batches add up."""
        return self.passes.backward(micro > 0 and not self._partition.shards, last)

    def _prefetch(self) -> None:
        batch = self._batch.following()
        if batch is not None:
            self.passes.feed.ahead(batch)

    def _check_due(self) -> None:
        if self._losses.due:
            self._outcome = self._next_outcome()

    def _next_outcome(self) -> IterationLoss:
        """Wait for the oldest loss in flight. Raises DivergedError on every rank if it is not finite."""
        outcome = self._losses.next_outcome()
        if not math.isfinite(outcome.loss_sum):
            batches = (each for each in self._recent if each.batch.iteration == outcome.iteration)
            self._divergence.raise_everywhere(outcome, next(batches, self._batch))
        return outcome
