"""Every rank updates the slices it owns, and keeps the optimizer's state of those alone. Exact.

1.  Gradients are summed by the first half of an all-reduce, bucket by bucket while backward runs: a rank ends with the
    sums of its own slices.
2.  It updates the weights of its slices; the optimizer's state of all others lies with their owners.
3.  Weights are handed round by the second half. With ``overlap`` forward they travel while the next forward pass
    computes, the lowest layers first, and are waited for where they are read.

Bytes: as many as an all-reduce sends. Memory: weights and gradients as ever, the optimizer's state divided by the
ranks. Slices are cut without regard to parameters. Norms, of a whole gradient or a whole parameter, are made of the
sums of squares of each rank's slices. Running statistics lie among the weights, and their shares among the gradients:
they need nothing of their own.

Where the whole state is wanted, for a checkpoint, it is gathered by the second half too, in the memory of the
gradients, which are not needed between iterations.

Source: Feng, Shi & Jain, CaffeOnSpark, Yahoo 2016; Rajbhandari et al., ZeRO, SC 2020 (stage 1).
"""

import numpy as np

from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.buckets.bucketed_allreduce import BUCKET_BYTES
from ringtrain.exchange.buckets.deferred_update import BACKWARD, FORWARD, NONE
from ringtrain.exchange.buckets.reduce_scatter import ReduceScatterAllGather, schedule_name
from ringtrain.exchange.buckets.reducer import Reducer, traffic_of
from ringtrain.exchange.buckets.streams import two_orders
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.loss_scale import LossScale, rehearse_unscale, unscale
from ringtrain.exchange.update.owned_update import OwnedUpdate, check_names
from ringtrain.exchange.update.ranges import common, elements
from ringtrain.humanize import format_bytes
from ringtrain.monitor.guard import DEADLINE_S, Guard
from ringtrain.nn.buckets import make_buckets
from ringtrain.transport.base import Transport


class Sharded(Exchange):
    """algorithm:     a schedule of two halves (:data:`ringtrain.collectives.catalogue.HALVES`), or ``auto``
    bucket_bytes:  gradients are exchanged in buckets of about this size
    segment_bytes: where messages are cut; None: as suits the nodes
    clip_norm:     the largest global norm of the summed gradient; None for no limit
    beside:        see :class:`ringtrain.exchange.settings.ExchangeSettings`
    deadline_s:    how long to wait for others that make no progress, before StalledError
    guard:         watches the halves; None for none
    overlap:       none, backward or forward
    scale:         of the loss; None for none
    """

    name = "sharded"
    exact = True
    state_is_local = False

    def __init__(
        self,
        transport: Transport,
        ops,
        algorithm: str = "auto",
        bucket_bytes: int = BUCKET_BYTES,
        segment_bytes: int | None = None,
        clip_norm: float | None = None,
        deadline_s: float = DEADLINE_S,
        guard: Guard | None = None,
        overlap: str = BACKWARD,
        beside=float,
        scale: LossScale | None = None,
    ):
        self._transport, self._ops, self._orders = transport, ops, two_orders(ops)
        self._algorithm = schedule_name(algorithm, transport)
        self._bucket_bytes, self._segment_bytes = bucket_bytes, segment_bytes
        self._clip_norm, self._deadline_s = clip_norm, deadline_s
        self._guard, self._square, self._beside, self._scale = guard, np.zeros(1), beside, scale
        self._overlap = overlap
        self._owed: set[int] = set()  # places of buckets whose weights forward is to wait for

    def bind(self, arena, optimizer) -> None:
        transport, grads = self._transport, arena.grads
        self._arena = arena
        buckets = make_buckets(arena.spans, grads.dtype.itemsize, self._bucket_bytes)
        halves = ReduceScatterAllGather(
            self._algorithm, transport, self._orders.own, buckets, self._segment_bytes, self._guard
        )
        self._update = OwnedUpdate(self._ops, arena, optimizer, grads, halves.owned(transport.rank))
        self.state_bytes = self._update.nbytes
        lowest_first = range(len(buckets))[::-1] if self._overlap == FORWARD else None
        scatters, gathers = halves.scatters(grads, 0), halves.gathers(arena.weights, 1)
        deadline_s, orders = self._deadline_s, self._orders
        self._sums = Reducer(buckets, scatters, deadline_s, early=self._overlap != NONE, orders=orders)
        self._weights = Reducer(buckets, gathers, deadline_s, orders=orders, order=lowest_first)
        self._state = Reducer(buckets, halves.gathers(grads, 2), deadline_s, orders=orders)
        self._trained = common(trained_runs(arena.spans), self._update.pieces)
        shares = [elements(halves.owned(rank)) for rank in range(transport.size)]
        self.notes = [self._memory(shares, grads.dtype.itemsize * len(optimizer.slots))]

    def _memory(self, shares: list[int], nbytes: int) -> str:
        """``nbytes``: of the optimizer's state, for an element."""
        least, most, whole = (format_bytes(nbytes * count) for count in (min(shares), max(shares), sum(shares)))
        each = most if least == most else texts.FROM_TO(least=least, most=most)
        return texts.SHARDED(algorithm=self._algorithm, each=each, whole=whole)

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._orders.own.add(nothing, nothing, nothing)
        self._ops.copy(nothing, nothing)
        if self._clip_norm is not None:
            rehearse_clip(self._ops, nothing)
        if self._scale is not None:
            rehearse_unscale(self._ops, nothing)
        self._update.rehearse()

    @property
    def late(self) -> bool:
        return bool(self._owed)

    def before(self, iteration: int, examples: int, total: int) -> None:
        """A rank without examples runs no forward pass, in which it would wait."""
        if not examples:
            self.synchronize()

    def before_read(self, span) -> None:
        place = self._weights.home[span.name]
        if place in self._owed:
            self._arrive(place)

    def grad_ready(self, span) -> None:
        self._sums.grad_ready(span)

    def cuts(self):
        return self._sums.cuts

    def waits(self):
        return self._weights.cuts if self._overlap == FORWARD else frozenset()

    def finish(self, iteration: int, lr: float) -> None:
        """A bucket's weights are handed round as soon as they are updated, while other sums still arrive."""
        self._update.step += 1
        buckets = self._summed()
        if buckets is None:
            self._update.step -= 1
            return
        for bucket in buckets:
            self._update.apply(lr, bucket.start, bucket.stop)
            self._weights.start_next()
        self._owed = set(self._weights.order)
        if self._overlap != FORWARD:
            self.synchronize()

    def _summed(self):
        """The buckets whose sums have arrived, one by one as their weights are handed round; all at once where norms
        decide, or whether all is finite: None where it is not."""
        sums, order = self._sums, self._weights.order
        if self._clip_norm is None and self._scale is None and not self._update.layerwise:
            sums.start()
            return (sums.arrive(place) for place in order)
        sums.wait_all()
        if self._scale is not None and not unscale(
            self._ops, self._arena.grads, self._trained, self._scale, self._count
        ):
            return None
        if self._clip_norm is not None:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm, self._total)
        if self._update.layerwise:
            self._update.prepare(self._add_over_ranks)
        return (sums.buckets[place] for place in order)

    def _total(self, own: float) -> float:
        return self._beside(self._count(own))

    def _count(self, own: float) -> float:
        self._square[0] = own
        self._add_over_ranks(self._square)
        return float(self._square[0])

    def _add_over_ranks(self, numbers: np.ndarray) -> None:
        self._transport.native_allreduce_start(numbers).wait(self._deadline_s)

    def synchronize(self) -> None:
        """The weights that forward was to wait for arrive."""
        for place in self._weights.order:
            if place in self._owed:
                self._arrive(place)

    def _arrive(self, place: int) -> None:
        self._weights.arrive(place)
        self._owed.remove(place)

    def state(self) -> dict:
        """Collective: every rank gives its slices."""
        self.synchronize()
        return self._update.gathered(self._arena.grads, self._state.wait_all)

    def kept(self):
        return self._update.kept(alike=False)

    def check_names(self, names) -> None:
        check_names(names, self._update.slots)

    def restore(self, state: dict) -> None:
        """Raises CheckpointError where the state is another optimizer's, or of another arena."""
        self.check_names(state)
        self._update.take(state)

    def reducers(self) -> dict:
        return {"gradients": self._sums, "weights": self._weights}

    def traffic(self) -> Traffic:
        """Of training; not of gathering the state."""
        return traffic_of(self._sums, self._weights)

    def close(self) -> None:
        del self._sums, self._weights, self._state


def make(kit: ExchangeSettings) -> Sharded:
    config = kit.config
    return Sharded(
        kit.transport,
        kit.ops,
        algorithm=config.algorithm,
        bucket_bytes=config.bucket_bytes,
        segment_bytes=config.segment_bytes,
        clip_norm=config.clip_norm,
        deadline_s=config.deadline_s,
        guard=kit.guard,
        overlap=config.overlap,
        beside=kit.beside,
        scale=kit.scale,
    )
