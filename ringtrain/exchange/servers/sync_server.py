"""Servers sum the gradients of spans they own, update those, and send the weights back. Exact.

1.  Each bucket's gradients go to its server while backward runs. A server sums them in the order of ranks, whoever is
    early, so that the sum of an iteration is made once, when all have given to it, and applied once.
2.  It updates its spans. The optimizer's state of these lies there, and nowhere else.
3.  Weights go back, to all ranks that train.

The first ranks serve: S of them, each the owner of as many elements; or of whole parameters, where the optimizer wants
the norms of those. They train too, or are dedicated. With two levels a node's head sums what its node's ranks made
before anything leaves the node, and hands on what comes back.

``--overlap`` says when what travels: ``none``, all after backward; ``backward``, gradients as they become final;
``forward``, weights besides while the next forward computes, the lowest layers first: a layer waits for its own alone.

Bytes: a rank sends n, a server n/S to each rank: its link is what everybody waits for. Memory: weights and gradients
as ever, a server's part of the optimizer's state, and what waits to be added.

What depends on all of a gradient, its norm, is made of the sums of squares of each server's part. Running statistics
lie among the weights, and their shares among the gradients: they need nothing of their own.

Where ranks may be apart (a staleness, or asynchronous) it is another exchange:
:mod:`ringtrain.exchange.servers.async_server`.

Source: Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014; of the two levels, Feng,
Shi & Jain, CaffeOnSpark, Yahoo 2016; of what travels layer by layer, Das et al., Distributed deep learning using
synchronous stochastic gradient descent, Intel 2016.
"""

import numpy as np

from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange, Roles
from ringtrain.exchange.buckets.bucketed_allreduce import BUCKET_BYTES
from ringtrain.exchange.buckets.deferred_update import BACKWARD, FORWARD, NONE
from ringtrain.exchange.buckets.reducer import InArrivalOrder, Reducer, traffic_of
from ringtrain.exchange.buckets.streams import two_orders
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.servers.async_server import AsyncParameterServer
from ringtrain.exchange.servers.ownership import (
    buckets_of,
    divide_ownership,
    pieces_of,
    roles_of,
    say_load,
    say_servers,
)
from ringtrain.exchange.servers.trees import ReductionTrees, tree_of
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.owned_update import OwnedUpdate, check_names
from ringtrain.exchange.update.ranges import Piece, common
from ringtrain.monitor.guard import DEADLINE_S, Guard
from ringtrain.transport.base import Transport


class ParameterServer(Exchange):
    """servers:       how many ranks own parts of the arena, from rank 0 on
    dedicated:     whether they only serve
    levels:        2: heads of nodes sum first
    overlap:       none, backward or forward
    bucket_bytes:  what is exchanged together, about
    segment_bytes: where messages are cut; None: as suits the nodes
    clip_norm:     the largest global norm of the summed gradient; None for no limit
    deadline_s:    how long to wait for others that make no progress, before StalledError
    guard:         watches what ranks do together; None for none

    Raises ConfigError for more servers than ranks, or than parameters.
    """

    name = "server"
    exact = True
    all_reduces = False
    state_is_local = False

    def __init__(
        self,
        transport: Transport,
        ops,
        servers: int = 1,
        dedicated: bool = False,
        levels: int = 1,
        overlap: str = BACKWARD,
        bucket_bytes: int = BUCKET_BYTES,
        segment_bytes: int | None = None,
        clip_norm: float | None = None,
        deadline_s: float = DEADLINE_S,
        guard: Guard | None = None,
    ):
        self._transport, self._ops, self._orders = transport, ops, two_orders(ops)
        self._dedicated, self._roles = dedicated, roles_of(transport.size, servers, dedicated)
        self._levels, self._overlap = levels, overlap
        self._bucket_bytes, self._segment_bytes = bucket_bytes, segment_bytes
        self._clip_norm, self._deadline_s = clip_norm, deadline_s
        self._guard, self._squares = guard, np.zeros(1)
        servers = say_servers(self._roles, dedicated)
        self.terms = texts.NODES_FIRST(servers=servers) if levels == 2 else servers
        self._behind = False  # whether dedicated servers lack weights of one another's

    def roles(self, size: int) -> Roles:
        return self._roles

    def bind(self, arena, optimizer) -> None:
        self._arena, self._tree = arena, tree_of(self._transport, self._levels)
        grads, everybody = arena.grads, range(self._transport.size)
        parts = divide_ownership(arena.spans, len(self._roles.servers), whole=optimizer.layerwise)
        self._pieces = pieces_of(arena.spans, parts)
        owned = buckets_of(parts, grads.dtype.itemsize, self._bucket_bytes)
        self._update = OwnedUpdate(self._ops, arena, optimizer, grads, piece_of(parts, self._transport.rank))
        self.state_bytes = self._update.nbytes
        self._trained = common(trained_runs(arena.spans), self._update.pieces)
        self._sums = self._flight(owned, "sums", grads, self._roles.trainers, 0)
        back = owned[::-1] if self._overlap == FORWARD else owned
        self._weights = self._flight(back, "spreads", arena.weights, self._roles.trainers, 1)
        self._coming = InArrivalOrder(self._weights)
        self._state = self._flight(owned, "spreads", grads, everybody, 2)
        self._missed = self._flight(owned, "spreads", arena.weights, self._roles.servers, 3)
        self.notes = [say_load(parts, arena.weights.dtype.itemsize)]

    def _flight(self, owned, what: str, buffer, members, round: int) -> Reducer:
        trees = ReductionTrees(self._transport, self._orders.own, owned, self._tree, self._segment_bytes, self._guard)
        halves = trees.sums if what == "sums" else trees.spreads
        buckets = [bucket for _, bucket in owned]
        return Reducer(buckets, halves(buffer, members, round), self._deadline_s, orders=self._orders)

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._orders.own.add(nothing, nothing, nothing)
        self._ops.copy(nothing, nothing)
        if self._clip_norm is not None:
            rehearse_clip(self._ops, nothing)
        self._update.rehearse()

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def before(self, iteration: int, examples: int, total: int) -> None:
        if not examples:  # no forward will ask for weights, and gradients are zero at once
            self._coming.wait_all()

    def before_read(self, span) -> None:
        for piece in self._pieces[span.name]:
            self._coming.before_read(piece)

    def grad_ready(self, span) -> None:
        for piece in self._pieces[span.name] if self._overlap != NONE else ():
            self._sums.grad_ready(piece)

    def cuts(self):
        return self._with(self._sums.cuts) if self._overlap != NONE else frozenset()

    def waits(self):
        return self._with(self._weights.cuts) if self._overlap == FORWARD else frozenset()

    def _with(self, pieces: frozenset[str]) -> frozenset[str]:
        """Names of the spans that have one of these pieces."""
        return frozenset(name for name, held in self._pieces.items() if any(piece.name in pieces for piece in held))

    def finish(self, iteration: int, lr: float) -> None:
        """A bucket's weights go back as soon as they are updated, while other sums still arrive; with ``forward`` when
        all are, from the lowest on, and whoever needs them waits."""
        self._update.step += 1
        self._behind = self._dedicated
        for bucket in self._summed():
            self._update.apply(lr, bucket.start, bucket.stop)
            if self._overlap != FORWARD:
                self._weights.start_next()
        if self._overlap == FORWARD:
            self._coming.start()
        else:
            self._weights.wait_all()

    def _summed(self):
        """The buckets whose sums have arrived, one by one; all at once where the norm of the whole decides."""
        if self._clip_norm is None:
            return self._sums.arrivals()
        self._sums.wait_all()
        clip(self._ops, self._arena.grads, self._trained, self._clip_norm, self._over_ranks)
        return self._sums.buckets

    def _over_ranks(self, own: float) -> float:
        self._squares[0] = own
        self._transport.native_allreduce_start(self._squares).wait(self._deadline_s)
        return float(self._squares[0])

    def synchronize(self) -> None:
        self._coming.wait_all()
        if self._behind:
            self._missed.wait_all()
            self._behind = False

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────
    def state(self) -> dict:
        """Collective: every server gives its part."""
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
        self._coming.wait_all()
        del self._sums, self._weights, self._coming, self._state, self._missed


def piece_of(parts, rank: int) -> list[Piece]:
    """What ``rank`` serves: one piece, or none."""
    return [(parts[rank][0].start, parts[rank][-1].stop)] if rank < len(parts) else []


def make(kit: ExchangeSettings) -> Exchange:
    config = kit.config
    if config.asynchronous or config.staleness:
        return apart(kit, None if config.asynchronous else config.staleness, 1)
    return ParameterServer(
        kit.transport,
        kit.ops,
        servers=config.servers,
        dedicated=config.dedicated,
        levels=config.server_levels,
        overlap=config.overlap,
        bucket_bytes=config.bucket_bytes,
        segment_bytes=config.segment_bytes,
        clip_norm=config.clip_norm,
        deadline_s=config.deadline_s,
        guard=kit.guard,
    )


def apart(kit: ExchangeSettings, staleness: int | None, every: int) -> AsyncParameterServer:
    """Where ranks are apart: the options of the same servers."""
    config = kit.config
    return AsyncParameterServer(
        config.sync,
        kit.transport,
        kit.ops,
        servers=config.servers,
        dedicated=config.dedicated,
        staleness=staleness,
        every=every,
        overlap=config.overlap,
        bucket_bytes=config.bucket_bytes,
        segment_bytes=config.segment_bytes,
        clip_norm=config.clip_norm,
        deadline_s=config.deadline_s,
        guard=kit.guard,
    )
