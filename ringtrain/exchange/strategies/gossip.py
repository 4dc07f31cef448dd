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

from ringtrain.exchange import tags, texts
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reducer import take_mean
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.settings import ExchangeSettings, settings
from ringtrain.exchange.strategies.gossip_pairs import partners
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.owned_update import OwnedUpdate, check_names, everything
from ringtrain.monitor.guard import DEADLINE_S
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import wait_for


class Gossip(Exchange):
    """seed:      of the order in which ranks meet
    window:    how many iterations ranks may be apart
    clip_norm: the largest norm of a rank's own gradient; None for no limit
    how:       arguments of :class:`ringtrain.exchange.buckets.bucketed_allreduce.BucketedAllReduce`, for means over all
               ranks
    """

    name = "gossip"
    exact = False
    state_is_local = False

    def __init__(
        self,
        transport: Transport,
        ops,
        seed: int = 0,
        window: int = 8,
        clip_norm: float | None = None,
        deadline_s: float = DEADLINE_S,
        **how,
    ):
        self._transport, self._ops, self._clip_norm, self._deadline_s = transport, ops, clip_norm, deadline_s
        self.window = window
        self.terms = texts.ITERATIONS_APART(window=window)
        self._summing = BucketedAllReduce(transport, ops, deadline_s=deadline_s, **how)
        self._partners = partners(transport.rank, seed, transport.size)
        self._due: tuple[Handle, ...] = ()  # to start when the mark _final is done
        self._meeting: tuple[Handle, ...] = ()  # under way
        self._here = 0  # examples of this iteration, on this rank
        self._apart = self._differs = False  # whether weights, and states, may differ from rank to rank
        self._bytes_sent, self._exposed_s = 0, 0.0

    def bind(self, arena, optimizer) -> None:
        self._arena = arena
        self._theirs = self._transport.scratch(arena.count, arena.weights.dtype)
        self._update = OwnedUpdate(self._ops, arena, optimizer, arena.grads, everything(arena))
        self.state_bytes = self._update.nbytes + self._theirs.size * self._theirs.dtype.itemsize
        self._sums = self._summing.bind(arena.spans, arena.grads)
        self.notes = self._summing.notes
        self._trained = trained_runs(arena.spans)
        self._meetings = {peer: self._prepare(peer) for peer in set(self._partners) - {None}}

    def _prepare(self, peer: int) -> tuple[Handle, Handle]:
        """The receive first: nobody sends before it is posted."""
        return (
            self._transport.recvs([(peer, self._theirs)], tags.GOSSIP),
            self._transport.sends([(peer, self._arena.weights)], tags.GOSSIP),
        )

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._summing.rehearse(nothing)
        rehearse_clip(self._ops, nothing)
        self._ops.copy(nothing, nothing)
        self._update.rehearse()

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
        self._bytes_sent += self._theirs.size * self._theirs.dtype.itemsize

    def before_read(self, span) -> None:
        """Between layers is the time to let messages get on."""
        self._test()

    def grad_ready(self, span) -> None:
        self._test()

    def _start(self) -> bool:
        """The meeting that is due begins if its weights are final. Whether none is due any more."""
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
        self._exposed_s += time.perf_counter() - began

    def finish(self, iteration: int, lr: float) -> None:
        self._update.step += 1
        if self._due or self._meeting:
            self._meet()
        if self._here:  # who saw nothing has learnt nothing
            if self._clip_norm is not None:
                clip(self._ops, self._arena.grads, self._trained, self._clip_norm)
            self._update.apply(lr, 0, self._arena.count)
        self._apart = self._differs = self._transport.size > 1

    def _meet(self) -> None:
        wait_for(self._start, self._deadline_s, lambda: texts.AWAITED_WEIGHTS)
        began = time.perf_counter()
        for handle in self._meeting:
            handle.wait(self._deadline_s)
        self._meeting = ()
        self._exposed_s += time.perf_counter() - began
        weights = self._arena.weights
        self._ops.add(weights, self._theirs, weights)
        self._ops.scale(weights, 0.5)

    # ── means over all ranks ──────────────────────────────────────────────────────────────────────────────────
    def synchronize(self) -> None:
        """All take the mean, unless nobody has moved since the last one."""
        if self._apart:
            self._take_mean(self._arena.weights)
        self._apart = False

    def _take_mean(self, array) -> None:
        take_mean(self._ops, array, 1 / self._transport.size, self._sums, self._arena.grads)

    def state(self) -> dict:
        """Collective: all take the mean of their states and go on with that, as the run does that is resumed here."""
        self.synchronize()
        for slot in self._update.slots.values() if self._differs else ():
            self._take_mean(slot)
        self._differs = False
        return self._update.state()

    def kept(self):
        return self._update.kept(alike=not self._differs)

    def check_names(self, names) -> None:
        check_names(names, self._update.slots)

    def restore(self, state: dict) -> None:
        """Raises CheckpointError where the state is another optimizer's, or of another arena."""
        self.check_names(state)
        self._update.take(state)

    def reducers(self) -> dict:
        return {"means": self._sums}

    def traffic(self) -> Traffic:
        """Of meetings, and of means over all ranks."""
        return Traffic(self._bytes_sent + self._sums.bytes_sent, self._exposed_s + self._sums.exposed_s)

    def close(self) -> None:
        for handle in (handle for pair in self._meetings.values() for handle in pair):
            handle.free()
        del self._sums


def make(kit: ExchangeSettings) -> Gossip:
    config = kit.config
    return Gossip(
        kit.transport,
        kit.ops,
        seed=config.seed,
        window=config.gossip_window,
        clip_norm=config.clip_norm,
        **settings(kit),
    )
