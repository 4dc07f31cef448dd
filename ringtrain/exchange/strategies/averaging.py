"""Ranks update alone, and average their weights every H iterations. Approximate, but for one case.

An iteration of a rank is one of serial SGD on its own part of the batch: the loss is the mean over that part, and no
gradient is exchanged. Every H iterations all ranks take the mean of their weights, each weighted by the examples that
it has seen since the last one. What becomes of the optimizer's state then is an option:

    keep      each rank goes on with its own
    average   all take the mean, weighted alike
    reset     all begin anew, AdamW's count of steps included

H = 1 with ``average`` is exact where an update is linear in gradients and state (sgd, nesterov, no clipping): the mean
of the updates is then the update by the mean.

*Post-local*: up to iteration ``begin`` gradients are summed and every rank makes the same update, as all-reduce does.

Gradients that are summed travel as ``overlap`` says. An average is waited for at once: forward needs all of it.

*Outer step*: the average is not taken as it is, but as the direction of a step from the weights of the last one, with
Nesterov momentum of its own: d = before - mean; u = m·u + d; w = before - lr·(d + m·u). With lr = 1 and m = 0 that is
the mean. Running statistics take the mean always.

Whoever looks in the middle of a period, an evaluation or a checkpoint, sees the mean of that moment, and ranks go on
from there: the period ends when it would have ended, and the outer step waits for that.

Bytes: those of an all-reduce every H iterations; twice that where the optimizer keeps one array and it is averaged,
three times for two. The mean is made in the memory of the gradients, which are not needed between iterations.

Asynchronous averaging has servers: :mod:`ringtrain.exchange.servers.change_push`.

Source: Stich, Local SGD converges fast and communicates little, ICLR 2019; Lin et al., Don't use large mini-batches,
use local SGD, ICLR 2020 (post-local); Douillard et al., DiLoCo, 2023 (outer step).
"""

from dataclasses import replace

from ringtrain.config.record import TrainConfig
from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange, ExchangeFacts, all_train
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.deferred_update import BACKWARD, BucketUpdater
from ringtrain.exchange.buckets.reducer import take_mean
from ringtrain.exchange.buckets.reducers import Reducers
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.outer_optimizer import OuterOptimizer
from ringtrain.exchange.update.local_update import LocalUpdate
from ringtrain.exchange.update.owned_state import OwnedState
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything

KEEP, AVERAGE, RESET = "keep", "average", "reset"


class Averaging(Exchange):
    """Updates alone, and averages the weights of all ranks every H iterations."""

    def __init__(self, settings: ExchangeSettings):
        config = settings.config
        self._settings, self._ops = settings, settings.ops
        self._every, self._momentum, self._begin = config.average_every, config.average_momentum, config.average_from
        outer = (config.outer_momentum, config.outer_lr)
        self._outer = OuterOptimizer(settings.ops, *outer) if outer != (0.0, 1.0) else None
        self._summing = BucketedAllReduce(settings)
        self.facts = ExchangeFacts(
            name="averaging",
            header=_header(config, self._outer is not None),
            roles=all_train(settings.transport.size),
            exact=self._summing.exact and config.average_every == 1 and config.average_momentum == AVERAGE,
            state_is_local=False,
        )
        self._together = True  # whether this iteration sums gradients
        self._examples = self._total = 0  # since the last average: of this rank, of all
        self._here = 0  # examples of this iteration, on this rank
        self._differs = False  # whether the optimizer's state may differ from rank to rank

    def bind(self, arena, optimizer) -> None:
        config = self._settings.config
        self._arena = arena
        self._update = OwnedUpdate(self._ops, arena, optimizer, arena.grads, everything(arena))
        self._alone = LocalUpdate(self._ops, arena, self._update, config.clip_norm)
        self._sums = self._summing.bind(arena.spans, arena.grads)
        self._updates = BucketUpdater(self._settings, arena, self._update, self._sums)
        if self._outer:
            self._outer.bind(arena)
        self.owned_state = OwnedState(
            self._update,
            self.synchronize,
            gather=self._gather,
            replicated=lambda: not self._differs,
            parts=[self._outer] if self._outer else [],
        )
        self.reducers = Reducers({"gradients and weights" if self._begin else "weights": self._sums})
        self.ready_points, self.wait_points = self._sums.ready_points, self._updates.wait_points
        linear = optimizer.linear and config.clip_norm is None and self._outer is None
        self.facts = replace(
            self.facts,
            exact=self.facts.exact and linear,
            notes=[*self._summing.notes, *filter(None, [self._no_overlap() or self._updates.note])],
            state_bytes=self._update.nbytes + (self._outer.nbytes if self._outer else 0),
        )

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._summing.rehearse(nothing)
        self._ops.copy(nothing, nothing)
        self._ops.fill(nothing, 0)
        self._alone.rehearse()
        if self._outer:
            self._outer.rehearse()

    def _no_overlap(self) -> str | None:
        overlap = self._settings.config.overlap
        return None if overlap == BACKWARD or self._begin else texts.NO_OVERLAP(overlap=overlap)

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def before(self, iteration: int, examples: int, total: int) -> None:
        self._together = iteration < self._begin
        if not self._together or not examples:  # weights or gradients are about to be written
            self._updates.synchronize()
        if self._together:
            return
        if self._outer and (iteration - self._begin) % self._every == 0:
            self._outer.begin()
        self._here = examples
        self._examples += examples
        self._total += total

    def denominator(self, local: float, total: float) -> float:
        return total if self._together else local

    def before_read(self, span) -> None:
        self._updates.before_read(span)

    def grad_ready(self, span) -> None:
        if self._together:
            self._sums.grad_ready(span)

    def finish(self, iteration: int, lr: float) -> None:
        if self._together:
            self._updates.finish(lr)
            return
        self._update.step += 1
        if self._here:  # a rank without examples has nothing to learn from
            self._alone.apply(lr)
        self._differs = True
        if (iteration + 1 - self._begin) % self._every == 0:
            self.synchronize()
            if self._outer:
                self._outer.step()

    # ── averages ──────────────────────────────────────────────────────────────────────────────────────────────
    def synchronize(self) -> None:
        """Average the weights, unless no rank has seen an example since the last average."""
        self._updates.synchronize()
        if not self._total:
            return
        share = self._examples / self._total
        self._mean(self._arena.weights, share)
        if self._momentum == AVERAGE:
            self._average_state(share)
        elif self._momentum == RESET:
            self._forget_state()
        self._examples = self._total = 0

    def _mean(self, array, share: float) -> None:
        take_mean(self._ops, array, share, self._sums, self._arena.grads)

    def _average_state(self, share: float) -> None:
        for slot in self._update.slots.values():
            self._mean(slot, share)
        self._differs = False

    def _forget_state(self) -> None:
        for slot in self._update.slots.values():
            self._ops.fill(slot, 0)
        self._update.step = 0
        self._differs = False

    def _gather(self) -> dict:
        """The mean of the ranks' states, with which all of them go on, as a resumed run does."""
        if self._differs:
            self._average_state(1 / self._settings.transport.size)
        return self._update.state()


def _header(config: TrainConfig, outer: bool) -> str:
    every = texts.EVERY(count=config.average_every) if config.average_every > 1 else texts.EVERY_ITERATION
    words = [every, texts.MOMENTUM(momentum=config.average_momentum)]
    if config.average_from:
        words.append(texts.ALL_REDUCE_UNTIL(iteration=config.average_from))
    if outer:
        words.append(texts.OUTER(momentum=config.outer_momentum, rate=config.outer_lr))
    return ", ".join(words)
