"""Each iteration a rank averages its weights with those of one other, then updates them by its own gradient.
Approximate.

1.  When an iteration begins, a rank sends its weights to its partner of that iteration, and receives the partner's.
    They travel while forward and backward compute, at the rank's own weights.
2.  When both are there the weights become the mean of the two, and are updated by the gradient: taken at the weights
    before the mean, of the rank's own part of the batch, over which the loss is the mean.

Pairs are known beforehand (:mod:`ringtrain.exchange.strategies.gossip_pairs`), so nobody waits but for its partner of
the iteration, who is in the same one. Both then hold the same bits before they update, a run can be repeated, and it
cannot lock: of the ranks at the lowest iteration none waits for one that is not there. Two halves weigh alike, whatever
examples they have seen: so a meeting leaves the mean over all ranks as it is, and updates alone move that. A rank
without examples in a tail makes no update, and meets its partner all the same.

The optimizer's state is a rank's own. Whoever looks, an evaluation or a checkpoint, sees the mean of the weights over
all ranks, and they go on from there. A checkpoint holds one state for all: ranks take the mean of theirs when it is
written, and go on with that.

Bytes: a rank sends n an iteration, however many ranks there are. Memory: n for the partner's weights.

Source: Lian, Zhang, Zhang & Liu, Asynchronous Decentralized Parallel SGD, ICML 2018 (AD-PSGD).
"""

import time
from dataclasses import replace

from ringtrain.exchange import tags, texts
from ringtrain.exchange.base import Exchange, ExchangeFacts, all_train
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reducer import take_mean
from ringtrain.exchange.buckets.reducers import MessageCount, Reducers
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.gossip_pairs import partners
from ringtrain.exchange.update.local_update import LocalUpdate
from ringtrain.exchange.update.owned_state import OwnedState
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.transport.base import Handle
from ringtrain.transport.waiting import wait_for


class Gossip(Exchange):
    """Averages this rank's weights with those of one partner in each iteration."""

    def __init__(self, settings: ExchangeSettings):
        config, self._transport, self._ops = settings.config, settings.transport, settings.ops
        self._clip_norm, self._deadline_s = config.clip_norm, config.deadline_s
        self.facts = ExchangeFacts(
            name="gossip",
            header=texts.ITERATIONS_APART(window=config.gossip_window),
            roles=all_train(self._transport.size),
            exact=False,
            state_is_local=False,
            max_iteration_lag=config.gossip_window,
        )
        self._summing = BucketedAllReduce(settings)
        self._partners = partners(self._transport.rank, config.seed, self._transport.size)
        self._due: tuple[Handle, ...] = ()  # to start when the mark _final is done
        self._meeting: tuple[Handle, ...] = ()  # under way
        self._here = 0  # examples of this iteration, on this rank
        self._apart = self._differs = False  # whether weights, and states, may differ from rank to rank
        self._count = MessageCount()

    def bind(self, arena, optimizer) -> None:
        self._arena = arena
        self._theirs = self._transport.scratch(arena.count, arena.weights.dtype)
        self._update = OwnedUpdate(self._ops, arena, optimizer, arena.grads, everything(arena))
        self._alone = LocalUpdate(self._ops, arena, self._update, self._clip_norm)
        self._sums = self._summing.bind(arena.spans, arena.grads)
        self._meetings = {peer: self._prepare(peer) for peer in set(self._partners) - {None}}
        self.owned_state = OwnedState(
            self._update, self.synchronize, gather=self._gather, replicated=lambda: not self._differs
        )
        self.reducers = Reducers(
            {"means": self._sums}, messages=[self._count], buckets=False, before_close=self._free_meetings
        )
        state_bytes = self._update.nbytes + self._theirs.size * self._theirs.dtype.itemsize
        self.facts = replace(self.facts, notes=self._summing.notes, state_bytes=state_bytes)

    def _prepare(self, peer: int) -> tuple[Handle, Handle]:
        """The receive, then the send: each starts in this order, so that no message arrives unexpected."""
        return (
            self._transport.recvs([(peer, self._theirs)], tags.GOSSIP),
            self._transport.sends([(peer, self._arena.weights)], tags.GOSSIP),
        )

    def _free_meetings(self) -> None:
        for handle in (handle for pair in self._meetings.values() for handle in pair):
            handle.free()

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._summing.rehearse(nothing)
        self._ops.copy(nothing, nothing)
        self._alone.rehearse()

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def denominator(self, local: float, total: float) -> float:
        return local

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._here = examples
        partner = self._partners[iteration % len(self._partners)]
        if partner is None:
            return
        self._due, self._final = self._meetings[partner], self._ops.mark()
        self._start()
        self._count.bytes_sent += self._theirs.size * self._theirs.dtype.itemsize

    def before_read(self, span) -> None:
        self._test()

    def grad_ready(self, span) -> None:
        self._test()

    def _start(self) -> bool:
        """Start the due meeting if its weights are final. Returns whether no meeting is due any more."""
        if self._due and self._final.done():
            for handle in self._due:
                handle.start()
            self._meeting, self._due = self._due, ()
        return not self._due

    def _test(self) -> None:
        began = time.perf_counter()
        self._start()
        for handle in self._meeting:
            handle.test()
        self._count.exposed_s += time.perf_counter() - began

    def finish(self, iteration: int, lr: float) -> None:
        self._update.step += 1
        if self._due or self._meeting:
            self._meet()
        if self._here:  # a rank without examples has nothing to learn from
            self._alone.apply(lr)
        self._apart = self._differs = self._transport.size > 1

    def _meet(self) -> None:
        wait_for(self._start, self._deadline_s, lambda: texts.AWAITED_WEIGHTS)
        began = time.perf_counter()
        for handle in self._meeting:
            handle.wait(self._deadline_s)
        self._meeting = ()
        self._count.exposed_s += time.perf_counter() - began
        weights = self._arena.weights
        self._ops.add(weights, self._theirs, weights)
        self._ops.scale(weights, 0.5)

    # ── means over all ranks ──────────────────────────────────────────────────────────────────────────────────
    def synchronize(self) -> None:
        """Average the weights over all ranks, unless no rank has updated since the last average."""
        if self._apart:
            self._take_mean(self._arena.weights)
        self._apart = False

    def _take_mean(self, array) -> None:
        take_mean(self._ops, array, 1 / self._transport.size, self._sums, self._arena.grads)

    def _gather(self) -> dict:
        """The mean of the ranks' states, with which all of them go on, as a resumed run does."""
        for slot in self._update.slots.values() if self._differs else ():
            self._take_mean(slot)
        self._differs = False
        return self._update.state()
