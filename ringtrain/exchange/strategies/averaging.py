"""Ranks update alone, and average their weights every H iterations. Approximate, but for one case.

An iteration of a rank is one of serial SGD on its own part of the batch. The average of weights counts the examples
that each rank has seen since the last one. ``--average-momentum`` decides about the optimizer's state then:
each rank keeps its own, or all take the mean. H = 1 with the mean of states is exact where an update is
linear in gradients and state: the mean of the updates is the update by the mean.

Up to iteration ``--average-from`` every rank makes the same update, as all-reduce does (post-local). The average is
in three parts: when (:class:`Periods`), what travels (weights, or :class:`TravellingChanges`), and what it does
(:class:`OuterOptimizer`). With fragments the optimizer's state is averaged when the last one's sum arrives.

An evaluation or a checkpoint within a period sees the mean of that moment; each rank goes on with its own state.

Bytes: one all-reduce every H iterations, for the weights and for each averaged array of state. Means are made
in the memory of the gradients. Asynchronous averaging has servers: :mod:`ringtrain.exchange.servers.change_push`.

Source: Stich, Local SGD converges fast and communicates little, ICLR 2019; Lin et al., Don't use large mini-batches,
use local SGD, ICLR 2020 (post-local); Donchev et al., Streaming DiLoCo with overlapping communication, 2025 (fragments,
delay, mixing).
"""

from collections.abc import Sequence
from dataclasses import replace

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, RankState, RankStates, all_train
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.deferred_update import BACKWARD, BucketUpdater
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.compression.error_feedback import make_gradient_reduction
from ringtrain.exchange.parts import CHANGE, has_outer_step, parts_of
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.changes import WHOLE, TravellingChanges
from ringtrain.exchange.strategies.outer_step import OuterOptimizer
from ringtrain.exchange.strategies.periods import periods_of
from ringtrain.exchange.strategies.rank_averages import AVERAGE, MEAN_ASIDE, RankAverages
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer


class Averaging(Exchange):
    """Updates alone, and averages the weights of all ranks every H iterations."""

    def __init__(self, settings: ExchangeSettings):
        self._settings, config = settings, settings.config
        self._periods, steps = periods_of(config), has_outer_step(config)
        self._outer = OuterOptimizer(settings) if steps or parts_of(config).travels == CHANGE else None
        self._changes: TravellingChanges | None = None  # None: whole weights travel
        self._reduction = BucketedAllReduce(settings.with_options(**WHOLE))
        self.facts = ExchangeFacts(
            name="averaging",
            header=_header(settings),
            roles=all_train(settings.transport.size),
            exact=self._reduction.exact and config.average_every == 1 and config.average_momentum == AVERAGE,
            state_is_local=False,
        )
        self._together = True  # whether this iteration sums gradients

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        settings, config, outer = self._settings, self._settings.config, self._outer
        self._update = OwnedUpdate(settings.ops, arena, optimizer, arena.grads, everything(arena), settings.clip_norm)
        outers = [outer] if outer else []
        changes = [TravellingChanges(settings, arena, each) for each in outers if parts_of(config).travels == CHANGE]
        self._changes, reductions = changes[0] if changes else None, [each.reduction for each in changes]
        for each in outers:
            each.bind(arena)
        tags = sum(each.tags for each in reductions)
        self._sums = self._reduction.bind(arena.spans, arena.grads, weights=True, tag=tags)
        self._averages = averages = RankAverages(settings, arena, self._update, self._sums, config.fragments)
        self._updates = BucketUpdater(settings, self._update, self._sums)
        self.owned_state = OwnedState(
            self._update,
            self.synchronize,
            gather=averages.gather,
            replicated=lambda: not averages.differs,
            parts=[*outers, *reductions],
            rank_state=RankStates([averages, *changes, *(r for r in reductions if isinstance(r, RankState))]),
        )
        reducers = {"gradients and weights" if config.average_from else "weights": self._sums}
        reducers |= self._changes.reducers if self._changes else {}
        self.reducers = Reducers(reducers, before_close=self._changes.wait_all if self._changes else None)
        self.rehearsed = [self._update, self._reduction, *reductions, *outers]
        self.ready_points, self.wait_points = self._sums.ready_points, self._updates.wait_points
        linear = optimizer.linear and settings.clip_norm is None and outer is None
        note = self._updates.note
        if not config.average_from and config.overlap != BACKWARD:
            note = (
                f"--overlap {config.overlap} has no effect: ranks wait for averages, and gradients travel only before "
                "--average-from"
            )
        differ = config.average_every > 1 or (outer is not None and outer.apart)
        of_mean = MEAN_ASIDE if settings.transport.size > 1 and differ else None
        of_changes = [text for each in reductions for text in each.notes]
        self.facts = replace(
            self.facts,
            exact=self.facts.exact and linear,
            notes=[*self._reduction.notes, *of_changes, *filter(None, [note, of_mean])],
            state_bytes=self._update.nbytes + sum(o.nbytes for o in outers) + sum(c.nbytes for c in changes),
        )

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._averages.go_on()
        if self._changes:
            self._changes.reduction.before(iteration)
        self._together = iteration < self._periods.begin
        if not self._together or not examples:  # weights or gradients are about to be written
            self._updates.synchronize()
        if self._together:
            if self._averages.differs:  # the run goes on with a later --average-from
                self._end_periods()
            return
        if self._outer and iteration == self._periods.begin:
            self._outer.begin()
        for period in self._averages.examples:
            period.add(examples, total)

    def denominator(self, local: float, total: float) -> float:
        return total if self._together else local

    def before_read(self, span: Span) -> None:
        self._updates.before_read(span)
        if self._changes:
            self._changes.test()

    def grad_ready(self, span: Span) -> None:
        if self._together:
            self._sums.grad_ready(span)
        elif self._changes:
            self._changes.test()

    def complete(self) -> None:
        assert self._together, "after --average-from ranks update alone"
        self._updates.complete()

    def finish(self, iteration: int, lr: float) -> None:
        if self._together:
            self._updates.finish(lr)
            return
        if self._averages.examples[0].local:
            self._update.make(lr)
        else:
            self._update.count()
        self._averages.diverge()
        momentum, periods = self._settings.config.average_momentum, self._periods
        self._exchange(periods.leaving(iteration), periods.arriving(iteration), momentum)

    def _exchange(self, leaving: Sequence[int], arriving: Sequence[int], momentum: str) -> None:
        """End the periods of some fragments, and take the sums of others."""
        if self._changes is None:
            if leaving:
                self._averages.average(momentum)
                if self._outer:
                    self._outer.step()
            return
        for number in leaving:
            self._take(number, momentum)  # only if the run goes on with other periods
            self._changes.start(number, self._averages.examples[number].take())
        for number in arriving:
            self._take(number, momentum)

    def _take(self, number: int, momentum: str) -> None:
        """Take a fragment's pending sum, if there is one."""
        assert self._changes and self._outer, "changes travel"
        share, fragments = self._changes.take_step(number), self._periods.fragments
        if share is not None and number == fragments - 1:
            self._averages.average_state(momentum, share, apart=self._outer.apart or fragments > 1)

    def _end_periods(self) -> None:
        """Average now, and leave all ranks with the same weights and state."""
        every = range(self._periods.fragments)
        self._exchange(every if any(self._averages.examples) else (), every, AVERAGE)
        if self._averages.differs:
            self._averages.average(AVERAGE)

    def synchronize(self) -> None:
        self._updates.synchronize()
        if self._changes:
            self._changes.wait_all()
        self._averages.show_mean()

    @property
    def distance(self) -> float | None:
        return self._averages.distance


def _header(settings: ExchangeSettings) -> str:
    config = settings.config
    every = f"every {config.average_every}" if config.average_every > 1 else "every iteration"
    words = {
        every: True,
        f"momentum: {config.average_momentum}": True,
        f"all-reduce up to iteration {config.average_from}": config.average_from,
        f"{config.fragments} fragments": config.fragments > 1,
        f"sums {config.average_delay} iterations late": config.average_delay,
        f"mixing {config.mixing:g}": config.mixing,
        f"outer momentum {config.outer_momentum:g}, rate {config.outer_lr:g}": has_outer_step(config),
        f"a centre with rate {config.centre_rate:g}": config.centre_rate,
    }
    if not config.compress == config.wire == NONE:
        words[f"changes {make_gradient_reduction(settings).header or f'in {config.wire}'}"] = True
    return ", ".join(text for text, applies in words.items() if applies)
