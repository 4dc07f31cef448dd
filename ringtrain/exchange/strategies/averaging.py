"""Ranks update alone, and average their weights every H iterations. Approximate, but for one case.

An iteration of a rank is one of serial SGD on its own part of the batch. The average of weights counts the examples
that each rank has seen since the last one. ``--average-momentum`` decides about the optimizer's state then:
each rank keeps its own, or all take the mean. H = 1 with the mean of states is exact where an update is
linear in gradients and state: the mean of the updates is the update by the mean.

Up to iteration ``--average-from`` every rank makes the same update, as all-reduce does (post-local). With an *outer
step* the average is the direction of a step (:class:`OuterOptimizer`).

An evaluation or a checkpoint within a period sees the mean of that moment; each rank goes on with its own state.

With ``--compress`` or ``--wire`` the ranks' changes of weights since the period began travel in place of the weights.

Bytes: one all-reduce every H iterations, for the weights and for each averaged array of state. Means are made
in the memory of the gradients. Asynchronous averaging has servers: :mod:`ringtrain.exchange.servers.change_push`.

Source: Stich, Local SGD converges fast and communicates little, ICLR 2019; Lin et al., Don't use large mini-batches,
use local SGD, ICLR 2020 (post-local); Douillard et al., DiLoCo, 2023 (outer step).
"""

from dataclasses import replace

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, RankState, RankStates, all_train
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce, GradientReduction
from ringtrain.exchange.buckets.deferred_update import BACKWARD, BucketUpdater
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.outer_step import TRAVEL_WHOLE, OuterOptimizer, make_change_reduction
from ringtrain.exchange.strategies.rank_averages import AVERAGE, MEAN_ASIDE, RankAverages
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer


class Averaging(Exchange):
    """Updates alone, and averages the weights of all ranks every H iterations."""

    def __init__(self, settings: ExchangeSettings):
        self._settings, config = settings, settings.config
        changes, outer = make_change_reduction(settings), (config.outer_momentum, config.outer_lr)
        self._outer = OuterOptimizer(settings, changes) if changes or outer != (0.0, 1.0) else None
        self._reduction = BucketedAllReduce(settings.with_options(**TRAVEL_WHOLE))
        self._changes = [changes] if changes else []
        self.facts = ExchangeFacts(
            name="averaging",
            header=_header(config, outer != (0.0, 1.0), changes),
            roles=all_train(settings.transport.size),
            exact=self._reduction.exact and config.average_every == 1 and config.average_momentum == AVERAGE,
            state_is_local=False,
        )
        self._together = True  # whether this iteration sums gradients

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        settings, config = self._settings, self._settings.config
        self._update = OwnedUpdate(settings.ops, arena, optimizer, arena.grads, everything(arena), settings.clip_norm)
        if self._outer:
            self._outer.bind(arena)
        rounds = sum(each.rounds for each in self._changes)
        self._sums = self._reduction.bind(arena.spans, arena.grads, weights=True, round=rounds)
        self._averages = averages = RankAverages(settings, arena, self._update, self._sums)
        self._updates = BucketUpdater(settings, self._update, self._sums)
        self.owned_state = OwnedState(
            self._update,
            self.synchronize,
            gather=averages.gather,
            replicated=lambda: not averages.differs,
            parts=[*([self._outer] if self._outer else []), *self._changes],
            rank_state=RankStates([averages, *(each for each in self._changes if isinstance(each, RankState))]),
        )
        reducers = {"gradients and weights" if config.average_from else "weights": self._sums}
        if self._outer and self._outer.sums:
            reducers["changes"] = self._outer.sums
        self.reducers = Reducers(reducers)
        self.rehearsed = [self._update, self._reduction, *self._changes, *([self._outer] if self._outer else [])]
        self.ready_points, self.wait_points = self._sums.ready_points, self._updates.wait_points
        linear = optimizer.linear and settings.clip_norm is None and self._outer is None
        note = self._updates.note
        if not config.average_from and config.overlap != BACKWARD:
            note = (
                f"--overlap {config.overlap} has no effect: ranks wait for averages, and gradients travel only before "
                "--average-from"
            )
        of_mean = MEAN_ASIDE if settings.transport.size > 1 and config.average_every > 1 else None
        of_changes = [text for each in self._changes for text in each.notes]
        self.facts = replace(
            self.facts,
            exact=self.facts.exact and linear,
            notes=[*self._reduction.notes, *of_changes, *filter(None, [note, of_mean])],
            state_bytes=self._update.nbytes + (self._outer.nbytes if self._outer else 0),
        )

    def before(self, iteration: int, examples: int, total: int) -> None:
        config = self._settings.config
        self._averages.go_on()
        for each in self._changes:
            each.before(iteration)
        self._together = iteration < config.average_from
        if not self._together or not examples:  # weights or gradients are about to be written
            self._updates.synchronize()
        if self._together:
            if self._averages.differs:  # the run goes on with a later --average-from
                self._end_period(AVERAGE)
            return
        if self._outer and (iteration - config.average_from) % config.average_every == 0:
            if self._averages.examples:  # a period is under way: the run goes on with another --average-every
                self._end_period(config.average_momentum)
            self._outer.begin()
        self._averages.examples.add(examples, total)

    def denominator(self, local: float, total: float) -> float:
        return total if self._together else local

    def before_read(self, span: Span) -> None:
        self._updates.before_read(span)

    def grad_ready(self, span: Span) -> None:
        if self._together:
            self._sums.grad_ready(span)

    def complete(self) -> None:
        assert self._together, "after --average-from ranks update alone"
        self._updates.complete()

    def finish(self, iteration: int, lr: float) -> None:
        if self._together:
            self._updates.finish(lr)
            return
        if self._averages.examples.local:
            self._update.make(lr)
        else:
            self._update.count()
        self._averages.diverge()
        config = self._settings.config
        if (iteration + 1 - config.average_from) % config.average_every == 0:
            self._end_period(config.average_momentum)

    def _end_period(self, momentum: str) -> None:
        under_way = bool(self._averages.examples)
        if self._outer and self._changes and under_way:
            self._averages.average(momentum, self._outer.exchange)
            return
        self._averages.average(momentum)
        if self._outer and under_way:
            self._outer.step()

    def synchronize(self) -> None:
        self._updates.synchronize()
        self._averages.show_mean()


def _header(config: ExchangeConfig, outer: bool, changes: GradientReduction | None) -> str:
    every = f"every {config.average_every}" if config.average_every > 1 else "every iteration"
    words = [every, f"momentum: {config.average_momentum}"]
    if config.average_from:
        words.append(f"all-reduce up to iteration {config.average_from}")
    if outer:
        words.append(f"outer momentum {config.outer_momentum:g}, rate {config.outer_lr:g}")
    if changes:
        words.append(f"changes {changes.header or f'in {config.wire}'}")
    return ", ".join(words)
