"""Each iteration a rank averages its weights with another rank's, then updates them by its own gradient.
Approximate.

1.  At the start of an iteration a rank and its partner of that iteration send each other their weights. These travel
    while forward and backward compute, at the rank's own weights.
2.  The weights become the mean of the two, and are updated by the gradient: taken at the weights before the mean, of
    the rank's own part of the batch, over which the loss is the mean.

A rank waits only for its partner (:mod:`ringtrain.exchange.strategies.gossip_pairs`), which is in the same iteration:
both hold the same bits before they update, a run can be repeated, and it cannot deadlock. The two halves weigh alike,
so an average of a pair leaves the mean over all ranks as it is. A rank without examples makes no update, and averages
all the same. An evaluation or a checkpoint sees the mean over all ranks; each goes on with its own weights and state.

Bytes: a rank sends n an iteration, for any number of ranks. Memory: n for the partner's weights.

Source: Lian, Zhang, Zhang & Liu, Asynchronous Decentralized Parallel SGD, ICML 2018 (AD-PSGD).
"""

import time
from collections.abc import Collection
from dataclasses import replace

from ringtrain.exchange import tags
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, all_train
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.gossip_pairs import partners
from ringtrain.exchange.strategies.rank_averages import MEAN_ASIDE, RankAverages
from ringtrain.exchange.update.example_share import ExampleShare
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer
from ringtrain.transport.base import Handle
from ringtrain.transport.waiting import wait_for


class Gossip(Exchange):
    """Averages this rank's weights with one partner's in each iteration."""

    def __init__(self, settings: ExchangeSettings):
        config, transport = settings.config, settings.transport
        self._settings = settings
        self.facts = ExchangeFacts(
            name="gossip",
            header=f"up to {config.gossip_max_lag} iterations apart",
            roles=all_train(transport.size),
            exact=False,
            state_is_local=False,
            max_iteration_lag=config.gossip_max_lag,
        )
        self._reduction = BucketedAllReduce(settings)
        self._partners = partners(transport.rank, settings.seed, transport.size)
        self._examples = 0  # examples of this iteration, on this rank

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        ops, clip_norm = self._settings.ops, self._settings.clip_norm
        self._update = OwnedUpdate(ops, arena, optimizer, arena.grads, everything(arena), clip_norm)
        sums = self._reduction.bind(arena.spans, arena.grads, weights=True)
        self._averages = averages = RankAverages(self._settings, arena, self._update, sums)
        met = {partner for partner in self._partners if partner is not None}
        self._partner_weights = PartnerWeights(self._settings, arena, met)
        alike, gather = (lambda: not averages.differs), averages.gather
        self.owned_state = OwnedState(self._update, self.synchronize, gather, alike, rank_state=averages)
        self.rehearsed = [self._update, self._reduction]
        self.reducers = Reducers(
            {"means": sums}, messages=[self._partner_weights], buckets=False, before_close=self._partner_weights.free
        )
        state_bytes = self._update.nbytes + self._partner_weights.nbytes
        notes = [*self._reduction.notes, *([MEAN_ASIDE] if met else [])]
        self.facts = replace(self.facts, notes=notes, state_bytes=state_bytes)

    def denominator(self, local: float, total: float) -> float:
        return local

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._examples = examples
        self._averages.go_on()
        self._averages.examples = ExampleShare()  # all ranks count alike, also after a run that averaged
        partner = self._partners[iteration % len(self._partners)]
        if partner is not None:
            self._partner_weights.start(partner)

    def before_read(self, span: Span) -> None:
        self._partner_weights.test()

    def grad_ready(self, span: Span) -> None:
        self._partner_weights.test()

    def finish(self, iteration: int, lr: float) -> None:
        self._partner_weights.average()
        if self._examples:
            self._update.make(lr)
        else:
            self._update.count()
        self._averages.diverge()

    def synchronize(self) -> None:
        self._averages.show_mean()


class PartnerWeights:
    """Exchanges weights with one of ``partners`` at a time. ``nbytes``: of the partner's weights."""

    def __init__(self, settings: ExchangeSettings, arena: Arena, partners: Collection[int]):
        transport = settings.transport
        self._ops, self._deadline_s, self._weights = settings.ops, settings.config.deadline_s, arena.weights
        self._theirs = transport.scratch(arena.count, arena.weights.dtype)
        self.nbytes = self._theirs.size * self._theirs.dtype.itemsize
        # The receive starts before the send, so that no message arrives unexpected.
        self._handles: dict[int, tuple[Handle, ...]] = {
            peer: (
                transport.recvs([(peer, self._theirs)], tags.GOSSIP),
                transport.sends([(peer, arena.weights)], tags.GOSSIP),
            )
            for peer in partners
        }
        self._due: tuple[Handle, ...] = ()  # to start when the mark _final is done
        self._in_flight: tuple[Handle, ...] = ()
        self.bytes_sent, self.exposed_s = 0, 0.0

    def start(self, partner: int) -> None:
        """Start when the weights are final on this rank's device."""
        self._due, self._final = self._handles[partner], self._ops.mark()
        self._start_final()
        self.bytes_sent += self.nbytes

    def _start_final(self) -> bool:
        """Start the due messages if the weights are final. Returns whether none is due any more."""
        if self._due and self._final.done():
            for handle in self._due:
                handle.start()
            self._in_flight, self._due = self._due, ()
        return not self._due

    def test(self) -> None:
        """Make progress, without waiting."""
        began = time.perf_counter()
        self._start_final()
        for handle in self._in_flight:
            handle.test()
        self.exposed_s += time.perf_counter() - began

    def average(self) -> None:
        """Wait for the partner's weights, and replace this rank's by the mean of both; nothing, if none was started."""
        if not self._due and not self._in_flight:
            return
        wait_for(self._start_final, self._deadline_s, lambda: "this rank's device to make its weights final")
        began = time.perf_counter()
        for handle in self._in_flight:
            handle.wait(self._deadline_s)
        self._in_flight = ()
        self.exposed_s += time.perf_counter() - began
        self._ops.add(self._weights, self._theirs, self._weights)
        self._ops.scale(self._weights, 0.5)

    def free(self) -> None:
        """Release the messages."""
        for handles in self._handles.values():
            for handle in handles:
                handle.free()
