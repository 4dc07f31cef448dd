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

Asynchronous averaging has servers, and is another exchange: :mod:`ringtrain.exchange.servers.async_server`.

Source: Stich, Local SGD converges fast and communicates little, ICLR 2019; Lin et al., Don't use large mini-batches,
use local SGD, ICLR 2020 (post-local); Douillard et al., DiLoCo, 2023 (outer step).
"""

from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.deferred_update import BACKWARD, BucketUpdater
from ringtrain.exchange.buckets.reducer import take_mean
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.servers.sync_server import apart
from ringtrain.exchange.settings import ExchangeSettings, settings
from ringtrain.exchange.strategies.outer_optimizer import OuterOptimizer
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.owned_update import OwnedUpdate, check_names, everything
from ringtrain.transport.base import Transport

KEEP, AVERAGE, RESET = "keep", "average", "reset"


class Averaging(Exchange):
    """every:     H, iterations between averages
    momentum:  what an average does to the optimizer's state: keep, average or reset
    begin:     the first iteration on one's own; gradients are summed in those before
    outer:     (momentum, rate) of the outer step; None for the mean itself
    clip_norm: the largest norm of a rank's own gradient, or of the sum where gradients are summed; None for no limit
    overlap:   none, backward or forward: of gradients that are summed
    how:       arguments of :class:`ringtrain.exchange.buckets.bucketed_allreduce.BucketedAllReduce`
    """

    name = "averaging"
    state_is_local = False

    def __init__(
        self,
        transport: Transport,
        ops,
        every: int = 8,
        momentum: str = AVERAGE,
        begin: int = 0,
        outer: tuple[float, float] | None = None,
        clip_norm: float | None = None,
        overlap: str = BACKWARD,
        **how,
    ):
        self._transport, self._ops, self._size = transport, ops, transport.size
        self._every, self._momentum, self._begin, self._clip_norm = every, momentum, begin, clip_norm
        self._outer = outer and OuterOptimizer(ops, *outer)
        self._overlap, self._summing = overlap, BucketedAllReduce(transport, ops, overlap=overlap, **how)
        self.terms = _terms(every, momentum, begin, outer)
        self._together = True  # whether this iteration sums gradients
        self._examples = self._total = 0  # since the last average: of this rank, of all
        self._here = 0  # of this iteration, on this rank
        self._differs = False  # whether the optimizer's state may differ from rank to rank

    def bind(self, arena, optimizer) -> None:
        self._arena = arena
        self._update = OwnedUpdate(self._ops, arena, optimizer, arena.grads, everything(arena))
        self.state_bytes = self._update.nbytes
        self._sums = self._summing.bind(arena.spans, arena.grads)
        self._updates = BucketUpdater(self._ops, arena, self._update, self._sums, self._clip_norm, self._overlap)
        self.notes = [*self._summing.notes, *filter(None, [self._no_overlap() or self._updates.note])]
        self._trained = trained_runs(arena.spans)
        linear = optimizer.linear and self._clip_norm is None and self._outer is None
        self.exact = self._summing.exact and linear and self._every == 1 and self._momentum == AVERAGE
        if self._outer:
            self._outer.bind(arena)
            self.state_bytes += self._outer.nbytes
        self._outer_slots = self._outer.slots if self._outer else {}

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._summing.rehearse(nothing)
        rehearse_clip(self._ops, nothing)
        self._ops.copy(nothing, nothing)
        self._ops.fill(nothing, 0)
        self._update.rehearse()
        if self._outer:
            self._outer.rehearse()

    def _no_overlap(self) -> str | None:
        if self._overlap == BACKWARD or self._begin:
            return None
        return texts.NO_OVERLAP(overlap=self._overlap)

    @property
    def late(self) -> bool:
        return self._updates.late

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

    def cuts(self):
        return self._sums.cuts

    def waits(self):
        return self._updates.waits

    def finish(self, iteration: int, lr: float) -> None:
        if self._together:
            self._updates.finish(lr)
            return
        self._update.step += 1
        if self._here:  # who saw nothing has learnt nothing, and weighs nothing
            self._apply(lr)
        self._differs = True
        if (iteration + 1 - self._begin) % self._every == 0:
            self.synchronize()
            if self._outer:
                self._outer.step()

    def _apply(self, lr: float) -> None:
        if self._clip_norm is not None:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm)
        self._update.apply(lr, 0, self._arena.count)

    # ── averages ──────────────────────────────────────────────────────────────────────────────────────────────
    def synchronize(self) -> None:
        """All take the mean, unless nobody has seen anything since the last one."""
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

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────
    def state(self) -> dict:
        """Collective. Where each rank keeps a state of its own, all take the mean and go on with that, as the run does
        that is resumed here."""
        self.synchronize()
        if self._differs:
            self._average_state(1 / self._size)
        outer = {name: self._ops.to_host(array) for name, array in self._outer_slots.items()}
        return {**self._update.state(), **outer}

    def kept(self):
        return self._update.kept(alike=not self._differs)

    def check_names(self, names) -> None:
        check_names(names, {**self._update.slots, **self._outer_slots})

    def restore(self, state: dict) -> None:
        """What an all-reduce kept will do where there is no outer step. Raises CheckpointError where the state is
        another optimizer's, or of another arena."""
        self.check_names(state)
        self._update.take(state)
        for name, slot in self._outer_slots.items():
            self._ops.upload(state[name], slot)

    def reducers(self) -> dict:
        return {"gradients and weights" if self._begin else "weights": self._sums}

    def traffic(self) -> Traffic:
        what = "gradients and weights" if self._begin else "weights"
        return Traffic(self._sums.bytes_sent, self._sums.exposed_s, buckets=self._sums.traffic(what))

    def close(self) -> None:
        del self._sums, self._updates


def _terms(every: int, momentum: str, begin: int, outer: tuple[float, float] | None) -> str:
    words = [texts.EVERY(count=every) if every > 1 else texts.EVERY_ITERATION, texts.MOMENTUM(momentum=momentum)]
    if begin:
        words.append(texts.ALL_REDUCE_UNTIL(iteration=begin))
    if outer:
        words.append(texts.OUTER(momentum=outer[0], rate=outer[1]))
    return ", ".join(words)


def make(kit: ExchangeSettings) -> Exchange:
    config = kit.config
    plain = (config.outer_momentum, config.outer_lr) == (0.0, 1.0)
    if config.asynchronous:
        return apart(kit, None, config.average_every)
    return Averaging(
        kit.transport,
        kit.ops,
        every=config.average_every,
        momentum=config.average_momentum,
        begin=config.average_from,
        outer=None if plain else (config.outer_momentum, config.outer_lr),
        clip_norm=config.clip_norm,
        **settings(kit),
    )
