"""Ranks that are apart: each updates alone, pushes what has changed to servers that add it, and takes weights back.
Approximate.

1.  A rank computes its gradient, as the mean over its own part of the batch, and makes the optimizer's step with it.
2.  What its weights have changed by since it took them last, times its part's share of the batch, goes to the servers,
    each its own part of the arena.
3.  A server adds it on arrival, and answers with its weights: at once, where there is no bound (asynchronous); or, with
    a staleness K, when the slowest has given all but K of the updates that this rank has (:mod:`.clock`).

So weights at clock c hold every rank's updates up to clock c - K - 1, and all of its own. *Momentum, and all other
state of the optimizer, lives at the workers*: sums of their steps are, for sgd and nesterov, the step with the sum of
their gradients, so that K = 0 would be synchronous SGD. Clipping is by the norm of a rank's own gradient.

With ``every`` = H a rank makes H updates between two pushes: asynchronous averaging. With parts of equal size a server
adds the change divided by the number of ranks.

What is pushed is made of the learning rate and the whole gradient, when backward is done: there is nothing to send
while it runs. With ``--overlap forward`` a layer waits for its own weights alone, the lowest first.

Bytes: a rank sends n, and a server n/S for each update. Memory: the weights that were taken last (n) at a worker; at a
server its part of the weights, and an update of it from each rank.

Source: Ho et al., NIPS 2013, and Cui et al., Exploiting bounded staleness to speed up big data analytics, ATC 2014
(staleness; servers that add); Dean et al., Large scale distributed deep networks, NIPS 2012 (asynchronous); Zhang,
Choromanska & LeCun, Deep learning with elastic averaging SGD, NIPS 2015 (changes of weights, asynchronously averaged).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange, Lag, Roles
from ringtrain.exchange.buckets.bucketed_allreduce import BUCKET_BYTES
from ringtrain.exchange.buckets.deferred_update import FORWARD
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.streams import two_orders
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.servers.endpoint import Endpoint
from ringtrain.exchange.servers.ownership import buckets_of, divide_ownership, roles_of, say_load, say_servers
from ringtrain.exchange.servers.trees import ReductionTrees, tree_of
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.mean_state import MeanState
from ringtrain.exchange.update.owned_update import OwnedUpdate, check_names, everything
from ringtrain.monitor.guard import DEADLINE_S, Guard
from ringtrain.transport.base import Transport


class AsyncParameterServer(Exchange):
    """name:          of the strategy
    servers:       how many ranks own parts of the arena, from rank 0 on
    dedicated:     whether they only serve
    staleness:     updates that a rank may be ahead of the slowest; None for asynchronous
    every:         updates between two pushes
    overlap:       ``forward``: layers wait for weights; else the end of an iteration does
    bucket_bytes:  weights come in parts of about this size
    segment_bytes: where messages are cut that bring weights to everybody; None: as suits the nodes
    clip_norm:     the largest norm of a rank's own gradient; None for no limit
    deadline_s:    how long to wait for others that make no progress, before StalledError
    guard:         watches what ranks do together; None for none

    Raises ConfigError for more servers than ranks, or than parameters.
    """

    exact = False
    all_reduces = False
    state_is_local = False

    def __init__(
        self,
        name: str,
        transport: Transport,
        ops,
        servers: int = 1,
        dedicated: bool = False,
        staleness: int | None = None,
        every: int = 1,
        overlap: str = "backward",
        bucket_bytes: int = BUCKET_BYTES,
        segment_bytes: int | None = None,
        clip_norm: float | None = None,
        deadline_s: float = DEADLINE_S,
        guard: Guard | None = None,
    ):
        self.name, self._transport, self._ops, self._orders = name, transport, ops, two_orders(ops)
        self._roles = roles_of(transport.size, servers, dedicated)
        self._staleness, self._every, self._overlap = staleness, every, overlap
        self._bucket_bytes, self._segment_bytes = bucket_bytes, segment_bytes
        self._clip_norm, self._deadline_s, self._guard = clip_norm, deadline_s, guard
        self.dynamic_batches = staleness is None
        self.window = 0 if staleness is None else staleness + 1
        self.terms = _terms(self._roles, dedicated, staleness, every)
        self._open = False  # whether ranks are between two meetings
        self._met = False  # whether servers have all updates, and ranks not yet their weights
        self._since = self._examples = self._total = 0  # since the last push: updates, examples of this rank, of all
        self._made = 0  # iterations
        self._changed = np.zeros(1)  # whether this rank has pushed since weights were last the same everywhere
        self._differs = False  # whether the optimizer's state may differ from rank to rank
        self._exposed_s = 0.0

    def roles(self, size: int) -> Roles:
        return self._roles

    def bind(self, arena, optimizer) -> None:
        transport, ops = self._transport, self._ops
        trains = transport.rank in self._roles.trainers
        self._arena, self._trained = arena, trained_runs(arena.spans)
        self._update = OwnedUpdate(ops, arena, optimizer, arena.grads, everything(arena) if trains else [])
        self._state = MeanState(
            transport, ops, self._update, optimizer.slots, self._roles.trainers, arena.grads, self._deadline_s
        )
        parts = divide_ownership(arena.spans, len(self._roles.servers))
        owned = buckets_of(parts, arena.weights.dtype.itemsize, self._bucket_bytes)
        by_server = [[bucket for owner, bucket in reversed(owned) if owner == k] for k in self._roles.servers]
        self._ends = Endpoint(
            transport, self._orders, arena, self._roles, parts, by_server, self._staleness, self._deadline_s, len(owned)
        )
        self._spread = self._prepare_spread(owned)
        self.notes = [say_load(parts, arena.weights.dtype.itemsize), texts.OWN_STATE]

    def _prepare_spread(self, owned) -> Reducer:
        """What brings the servers' weights to everybody, at a meeting."""
        transport, own = self._transport, self._orders.own
        trees = ReductionTrees(transport, own, owned, tree_of(transport, 1), self._segment_bytes, self._guard)
        spreads = trees.spreads(self._arena.weights, range(transport.size), 0)
        return Reducer([bucket for _, bucket in owned], spreads, self._deadline_s, orders=self._orders)

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._orders.own.add(nothing, nothing, nothing)
        self._orders.own.copy(nothing, nothing)
        self._ops.add(nothing, nothing, nothing)
        self._ops.copy(nothing, nothing)
        self._ops.fill(nothing, 0)
        rehearse_clip(self._ops, nothing)
        self._update.rehearse()

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def denominator(self, local: float, total: float) -> float:
        return local

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._begin()
        with self._held():
            self._ends.serve()
            if not examples:  # no forward will ask for weights, and gradients are zero at once
                self._ends.wait_all()
        self._here = examples
        self._examples += examples
        self._total += total

    def before_read(self, span) -> None:
        with self._held():
            self._ends.serve()
            self._ends.before_read(span)

    def grad_ready(self, span) -> None:
        with self._held():
            self._ends.serve()

    def poll(self) -> None:
        self._ends.serve()

    def finish(self, iteration: int, lr: float) -> None:
        self._made += 1
        if self._transport.rank not in self._roles.trainers:
            with self._held():
                self._ends.keep_pace(self._made)
            return
        if self._here:  # who saw nothing has learnt nothing
            self._apply(lr)
        self._since += 1
        if self._since == self._every:
            with self._held():
                self._push()

    def _apply(self, lr: float) -> None:
        self._update.step += 1
        if self._clip_norm is not None:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm)
        self._update.apply(lr, 0, self._arena.count)

    def _push(self) -> None:
        """The change since the last time, in the memory of the gradients, which are not needed any more."""
        ops, change, share = self._ops, self._arena.grads, self._examples / self._total
        self._ends.wait_all()
        ops.copy(self._ends.base, change)
        ops.scale(change, -1.0)
        ops.add(self._arena.weights, change, change)
        ops.scale(change, share)
        self._ends.push(ops.mark())
        self._since = self._examples = self._total = 0
        self._changed[0] = 1
        if self._overlap != FORWARD:
            self._ends.wait_all()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The loop is held up meanwhile."""
        began = time.perf_counter()
        yield
        self._exposed_s += time.perf_counter() - began

    # ── meetings ──────────────────────────────────────────────────────────────────────────────────────────────
    def _begin(self) -> None:
        """The time between two meetings begins, with the same weights everywhere."""
        if self._met:
            self.synchronize()
        if not self._open:
            self._open = True
            self._ends.open()

    def serve(self, meanwhile: Callable[[], None]) -> None:
        self._begin()
        self._ends.until_quiet(meanwhile)

    def drain_peers(self) -> None:
        """All updates are pushed and added."""
        if self._met:
            return
        self._begin()
        self._ends.wait_all()
        if self._since:
            self._push()
            self._ends.wait_all()
        self._ends.goodbye()
        self._ends.until_quiet(_nothing)
        self._open, self._met = False, True

    def synchronize(self) -> None:
        """All ranks take the servers' weights."""
        self.drain_peers()
        self._met = False
        if self._anybody_has_changed():
            self._differs = True
            self._ends.publish()
            self._spread.wait_all()

    def _anybody_has_changed(self) -> bool:
        self._transport.native_allreduce_start(self._changed).wait(self._deadline_s)
        changed = bool(self._changed[0])
        self._changed[0] = 0
        return changed

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────
    def state(self) -> dict:
        """Collective: where ranks have states of their own, all take the mean and go on with that, as the run does that
        is resumed here."""
        self.synchronize()
        taken = self._state.take(self._differs)
        self._differs = False
        return taken

    def kept(self):
        return self._update.kept(alike=False)

    def check_names(self, names) -> None:
        check_names(names, self._update.slots)

    def restore(self, state: dict) -> None:
        """What an all-reduce kept will do. Raises CheckpointError where the state is another optimizer's, or of another
        arena."""
        self.check_names(state)
        self._update.take(state)

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────
    def lag(self) -> Lag | None:
        if self._ends.store is None:
            return None
        clock = self._ends.store.clock
        return Lag(dict(clock.clock_lags), dict(clock.version_lags), dict(clock.clocks))

    def traffic(self) -> Traffic:
        """Of training; not of meetings."""
        return Traffic(self._ends.bytes_sent, self._exposed_s)

    def close(self) -> None:
        del self._spread, self._ends


def _nothing() -> None:
    pass


def _terms(roles: Roles, dedicated: bool, staleness: int | None, every: int) -> str:
    servers = say_servers(roles, dedicated)
    free = staleness is None
    terms = texts.ASYNCHRONOUS(servers=servers) if free else texts.STALENESS(servers=servers, staleness=staleness)
    return texts.EVERY_MORE(terms=terms, count=every) if every > 1 else terms
