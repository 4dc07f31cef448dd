"""The worker that runs iterations, which are lists of :mod:`ringtrain.train.step.instructions`. It knows the exchange
by its interface alone; no strategy is named here."""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.data.batches.sampler import ShardParts
from ringtrain.errors import DivergedError, everywhere
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Pass, Span, Workspace
from ringtrain.nn.graph import Graph
from ringtrain.nn.loss import SoftmaxCrossEntropy
from ringtrain.ops.base import Ops
from ringtrain.ops.keys import additive_key
from ringtrain.train import texts
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.instructions import (
    Backward,
    CheckLoss,
    CheckOwnLoss,
    Forward,
    Load,
    NoExamples,
    ReduceLoss,
    Update,
    alone,
    instructions,
)
from ringtrain.train.step.loss_sum import IterationLoss, LossAllReduce
from ringtrain.train.step.partition import BatchPartition
from ringtrain.train.step.stage import PipelineStage, StageIteration
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import wait_for


def no_batch() -> Batch | None:
    return None


class Worker:
    """Runs iterations: one rank's share of each."""

    def __init__(
        self,
        *,
        ops: Ops,
        graph: Graph,
        arena: Arena,
        loss: SoftmaxCrossEntropy,
        exchange: Exchange,
        transport: Transport,
        feed: DeviceInput,
        rate,
        seed: int,
        accumulate: int,
        grain: int,
        deadline_s: float,
        told_to_stop=lambda: False,
        stage: PipelineStage | None = None,
        add_over_ranks=None,
        scale: LossScale | None = None,
        shards: ShardParts | None = None,
    ):
        self.ops, self.graph, self.arena, self.loss = ops, graph, arena, loss
        self.exchange, self.transport, self.feed, self.rate = exchange, transport, feed, rate
        self._seed, self._deadline_s, self._shards = seed, deadline_s, shards
        self._parts = BatchPartition(exchange, transport.size, transport.rank, grain, accumulate, shards)
        self._stage, self._scale = stage, scale
        self.before_iteration = lambda iteration: None  # called when one begins
        self.space, self.activity = Workspace(ops), transport.activity
        self._add_over_ranks = add_over_ranks
        self._key = ops.zeros((1,), "uint64")
        together = transport.size > 1
        self._cuts = exchange.ready_points if together else frozenset()
        self._ctx = Pass(
            ops,
            self.space,
            key=self._key,
            add_over_ranks=add_over_ranks and self._add,
            recorded=stage is None,
            waits=exchange.wait_points if together else frozenset(),
        )
        self.activity.layer = lambda: self._ctx.layer
        self.in_layers_s = 0.0  # seconds that layers have waited for sums over ranks
        rows = shards.count if shards else 1
        self._tally = LossAllReduce(ops, transport, told_to_stop, exchange.facts.max_iteration_lag, rows, deadline_s)
        self.images = self.updates = 0  # that this rank has trained on, and iterations in which it had any
        self._following: Callable[[], Batch | None] = no_batch
        self._learnt: IterationLoss | None = None
        self._instructions = stage.instructions if stage else alone if exchange.facts.dynamic_batches else instructions
        self._batch: Batch | None = None
        self._micro: list[tuple[int, int]] = []
        self._x = self._labels = self._dlogits = self._tapes = self._row = None
        self.unwatched()

    def unwatched(self) -> None:
        """What an iteration calls is called as it is. Whoever watches puts itself in between."""
        self.perform, self.before_read, self.grad_ready = self.run, self.exchange.before_read, self.exchange.grad_ready

    def iterate(self, batch: Batch, following: Callable[[], Batch | None] = no_batch) -> IterationLoss | None:
        """One iteration on this rank's share of the global batch. What came of it; where ranks may be some
        iterations apart, of the one so many before, or None where there is none; where parts are handed out, of this
        part alone. ``following()``: the batch after it, if that is known yet; its upload may begin."""
        self.activity.iteration = batch.iteration + 1
        self.before_iteration(batch.iteration)
        self._following = no_batch if self._parts.read_elsewhere else following
        batch = self._parts.own(batch)
        self._begin(batch)
        self.images += len(batch.labels)
        self.updates += len(batch.labels) > 0
        self.exchange.before(batch.iteration, len(batch.labels), batch.total)
        self._ctx.total = self.exchange.denominator(len(batch.labels), batch.total)
        self._learnt = None
        for instruction in self._instructions(len(self._micro)):
            self.activity.at(instruction.doing)
            self.perform(instruction)
        self.activity.at("between two iterations")
        self.feed.arrive(batch)
        return self._learnt

    def drain(self) -> list[IterationLoss]:
        """What came of the iterations that have not been told of yet, in order. Collective."""
        return [self._learn() for _ in range(len(self._tally))]

    def rehearse(self, batch: Batch) -> None:
        """Run every kernel of an iteration, so that none is compiled inside one; weights stay as they are. No other
        rank is met."""
        adding = self._ctx.add_over_ranks
        self._ctx.add_over_ranks = adding and (lambda numbers: None)
        self._begin(self._parts.blank(batch))
        for micro in range(len(self._micro)):
            self.run(Load(micro))
            self._dlogits = self._loss(self._forward(), self._labels)
            for _ in self._backward(micro, last=False):
                pass
        if self._stage is not None:
            self._stage.rehearse()
        self.exchange.rehearse()
        self._ctx.add_over_ranks = adding

    def forget(self) -> None:
        """Give back the memory of passes; the next one makes it anew."""
        self._x = self._labels = self._dlogits = self._tapes = self._ctx.examples = None
        self.space.clear()

    def _add(self, numbers) -> None:
        began = time.perf_counter()
        self._add_over_ranks(numbers)
        self.in_layers_s += time.perf_counter() - began

    def _begin(self, batch: Batch) -> None:
        # Where ranks meet within passes, those without examples make them, too.
        empty = self.exchange.facts.within_passes or self._add_over_ranks is not None
        self._batch, self._micro = batch, self._parts.micro(batch, empty)
        self.ops.upload(np.array([additive_key(self._seed, batch.iteration)], np.uint64), self._key)
        self._ctx.total = batch.total
        self._tally.begin()
        if self._stage is not None:
            self._stage.begin(StageIteration(batch, self._micro, self._ctx, self._tally.row(0), self._denominator()))

    def run(self, instruction) -> None:
        match instruction:
            case Load(micro):
                self._load(*self._micro[micro])
                self._row = self._tally.row(self._shards.start + micro if self._shards else 0)
            case Forward(micro):
                self._dlogits = self.exchange.batches.loss_gradient(micro, self._forward(), self._labels, self._loss)
                self._look_ahead()
            case ReduceLoss():
                self._tally.share(self._batch)
            case Backward(micro, last):
                for span in self._backward(micro, last):
                    if self._shards:
                        self.exchange.shard_grad_ready(span)
                    if last:
                        self._tally.send()
                        self.grad_ready(span)
                self._look_ahead()
            case NoExamples():
                self._tally.send()
                self.ops.fill(self.arena.grads, 0)
                for span in reversed(self.arena.spans):
                    self.grad_ready(span)
            case CheckLoss():
                self._tally.send()
                if self._tally.full:
                    self._learnt = self._learn()
            case CheckOwnLoss():
                self._learnt = self._own_outcome()
            case Update():
                iteration = self._batch.iteration
                self.exchange.finish(iteration, self.rate(iteration))
            case _:
                self._stage.run(instruction)

    def _load(self, start: int, stop: int) -> None:
        self._x, self._labels, self._ctx.examples = self.feed.load(self._ctx.space, self._batch, start, stop)

    def _look_ahead(self) -> None:
        batch = self._following()
        if batch is not None:
            self.feed.ahead(batch)

    def _forward(self):
        logits, self._tapes = self.graph.forward(self._ctx, self._x, need=self.before_read)
        return logits

    def _backward(self, micro: int, last: bool) -> Iterator[Span]:
        """Gradients of a shard are by themselves; those of micro-batches are added up in the arena."""
        self._ctx.accumulate = micro > 0 and not self._shards
        self._ctx.cuts = self._cuts if last else frozenset()
        return self.graph.backward(self._ctx, self._dlogits, self._tapes)

    def _loss(self, logits, labels):
        factor = self._scale.factor if self._scale is not None else 1.0
        return self.loss.backward(self._ctx, logits, labels, self._row, self._denominator() / factor)

    def _denominator(self) -> float:
        """The loss's. A rank's own part of the valid labels is taken by its examples: then means of ranks that are
        weighted by examples make the mean over the batch, wherever labels are missing."""
        batch = self._batch
        return self.exchange.denominator(batch.valid_total * len(batch.labels) / batch.total, batch.valid_total)

    def _learn(self) -> IterationLoss:
        """Wait for the oldest sums. Raises DivergedError, on every rank."""
        outcome = self._tally.learn()
        if not math.isfinite(outcome.loss_sum):
            self._explain_divergence(outcome)
        return outcome

    def _own_outcome(self) -> IterationLoss:
        outcome = self._tally.own(self._batch)
        if not math.isfinite(outcome.loss_sum):
            place = self._first_nonfinite()
            raise DivergedError(_diverged(outcome, self._named(place, self.transport.rank)))
        return outcome

    def _explain_divergence(self, outcome: IterationLoss) -> None:
        """Find the first layer that gives a non-finite value, on any rank, and end every rank with its name."""
        if self._stage is not None:
            self.exchange.synchronize()  # the weights that other ranks hold
        self._wait_for_those_behind()
        everyone = self.transport.gather_json(self._first_nonfinite())
        places = [(place, rank) for rank, place in enumerate(everyone) if place is not None]
        raise everywhere(DivergedError(_diverged(outcome, self._named(*min(places, default=(None, None))))))

    def _wait_for_those_behind(self) -> None:
        """All ranks learn of a loss in the same iteration, and those that are behind may want something of this one to
        come to it. They are there when the sums that are under way have come, which is the last that each starts."""
        for pending in self._tally.pending():
            wait_for(partial(self._come, pending), self._deadline_s, lambda: "ranks that are behind")

    def _come(self, pending: Handle) -> bool:
        self.exchange.serving.poll()
        return pending.test()

    def _first_nonfinite(self) -> int | None:
        """The place, in order, of the first layer that gives a non-finite value for this rank's part of the batch."""
        order, found = [node.name for node in self.graph.plan], []
        for start, stop in self._micro:
            self._load(start, stop)
            _, tapes = self.graph.forward(self._ctx, self._x)
            found.append(self.graph.first_nonfinite(self._ctx, tapes))
        return min((order.index(name) for name in found if name), default=None)

    def _named(self, place: int | None, rank: int | None) -> str:
        if place is None:
            return texts.ALL_FINITE()
        return texts.FIRST_LAYER(layer=self.graph.plan[place].name, rank=rank)


def _diverged(outcome: IterationLoss, where: str) -> str:
    return texts.LOSS(loss=outcome.loss_sum, iteration=outcome.iteration + 1, where=where)
