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

from dataclasses import replace

from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange, ExchangeFacts
from ringtrain.exchange.buckets.deferred_update import FORWARD, NONE
from ringtrain.exchange.buckets.reducer import InArrivalOrder, Reducer
from ringtrain.exchange.buckets.reducers import Reducers
from ringtrain.exchange.buckets.streams import stream_pair
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
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
from ringtrain.exchange.update.owned_state import OwnedState
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.exchange.update.ranges import Piece, common


class ParameterServer(Exchange):
    """Sends each bucket's gradients to its server, which updates and sends the weights back.

    Raises ConfigError for more servers than ranks, or than parameters.
    """

    def __init__(self, settings: ExchangeSettings):
        config, transport = settings.config, settings.transport
        self._settings, self._transport, self._ops = settings, transport, settings.ops
        self._streams, self._overlap, self._clip_norm = stream_pair(settings.ops), config.overlap, config.clip_norm
        self._roles = roles_of(transport.size, config.servers, config.dedicated)
        self._sum_over_ranks = SumOverRanks(settings)
        servers = say_servers(self._roles, config.dedicated)
        self.facts = ExchangeFacts(
            name="server",
            header=texts.NODES_FIRST(servers=servers) if config.server_levels == 2 else servers,
            roles=self._roles,
            exact=True,
            state_is_local=False,
            all_reduces=False,
        )
        self._behind = False  # whether dedicated servers lack weights of one another's

    def bind(self, arena, optimizer) -> None:
        config, grads, everybody = self._settings.config, arena.grads, range(self._transport.size)
        self._arena, self._tree = arena, tree_of(self._transport, config.server_levels)
        parts = divide_ownership(arena.spans, len(self._roles.servers), whole=optimizer.layerwise)
        self._pieces = pieces_of(arena.spans, parts)
        owned = buckets_of(parts, grads.dtype.itemsize, config.bucket_bytes)
        self._update = OwnedUpdate(self._ops, arena, optimizer, grads, piece_of(parts, self._transport.rank))
        self._trained = common(trained_runs(arena.spans), self._update.pieces)
        self._sums = self._reducer(owned, "sums", grads, self._roles.trainers, 0)
        back = owned[::-1] if self._overlap == FORWARD else owned
        self._weights = self._reducer(back, "spreads", arena.weights, self._roles.trainers, 1)
        self._coming = InArrivalOrder(self._weights)
        whole = self._reducer(owned, "spreads", grads, everybody, 2)
        self._missed = self._reducer(owned, "spreads", arena.weights, self._roles.servers, 3)
        self.owned_state = OwnedState(
            self._update, self.synchronize, gather=lambda: self._update.gathered(grads, whole.wait_all)
        )
        self.reducers = Reducers(
            {"gradients": self._sums, "weights": self._weights},
            others=[whole, self._missed],
            before_close=self._coming.wait_all,
        )
        self.ready_points = self._with(self._sums.ready_points) if self._overlap != NONE else frozenset()
        self.wait_points = self._with(self._weights.ready_points) if self._overlap == FORWARD else frozenset()
        notes = [say_load(parts, arena.weights.dtype.itemsize)]
        self.facts = replace(self.facts, notes=notes, state_bytes=self._update.nbytes)

    def _reducer(self, owned, what: str, buffer, members, round: int) -> Reducer:
        config, guard = self._settings.config, self._settings.guard
        trees = ReductionTrees(self._transport, self._streams.own, owned, self._tree, config.segment_bytes, guard)
        halves = trees.sums if what == "sums" else trees.spreads
        buckets = [bucket for _, bucket in owned]
        return Reducer(buckets, halves(buffer, members, round), config.deadline_s, streams=self._streams)

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._streams.own.add(nothing, nothing, nothing)
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

    def _with(self, pieces: frozenset[str]) -> frozenset[str]:
        """Names of the spans that have one of these pieces."""
        return frozenset(name for name, held in self._pieces.items() if any(piece.name in pieces for piece in held))

    def finish(self, iteration: int, lr: float) -> None:
        """A bucket's weights go back as soon as they are updated, while other sums still arrive; with ``forward`` when
        all are, from the lowest on, and whoever needs them waits."""
        self._update.step += 1
        self._behind = self._settings.config.dedicated
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
        clip(self._ops, self._arena.grads, self._trained, self._clip_norm, self._sum_over_ranks)
        return self._sums.buckets

    def synchronize(self) -> None:
        self._coming.wait_all()
        if self._behind:
            self._missed.wait_all()
            self._behind = False


def piece_of(parts, rank: int) -> list[Piece]:
    """What ``rank`` serves: one piece, or none."""
    return [(parts[rank][0].start, parts[rank][-1].stop)] if rank < len(parts) else []
