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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ringtrain.exchange.base import Exchange, Lag, Roles, Traffic
from ringtrain.exchange.buckets import Bucket
from ringtrain.exchange.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.division import buckets_of, divide, roles_of, say_load, say_servers
from ringtrain.exchange.flight import Flight
from ringtrain.exchange.guard import DEADLINE_S, Guard
from ringtrain.exchange.links import Link, ToServer, WithinRank
from ringtrain.exchange.store import Store
from ringtrain.exchange.summing import BUCKET_BYTES
from ringtrain.exchange.trees import Trees, tree_of
from ringtrain.exchange.update import STEP, Update, check_names, check_sizes, everything
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers, wait_for

FORWARD = "forward"


class Pushing(Exchange):
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
        self.name, self._transport, self._ops = name, transport, ops
        self._roles = roles_of(transport.size, servers, dedicated)
        self._trains = transport.rank in self._roles.trainers
        self._staleness, self._every, self._overlap = staleness, every, overlap
        self._bucket_bytes, self._segment_bytes = bucket_bytes, segment_bytes
        self._clip_norm, self._deadline_s, self._guard = clip_norm, deadline_s, guard
        self.handed_out = staleness is None
        self.window = 0 if staleness is None else staleness + 1
        self.terms = _terms(self._roles, dedicated, staleness, every)
        self._open = False  # whether ranks are between two meetings
        self._since = self._examples = self._total = 0  # since the last push: updates, examples of this rank, of all
        self._made = 0  # iterations, of a rank that only serves
        self._changed = np.zeros(1)  # whether this rank has pushed since weights were last the same everywhere
        self._differs = False  # whether the optimizer's state may differ from rank to rank
        self._exposed_s = 0.0

    def roles(self, size: int) -> Roles:
        return self._roles

    def bind(self, arena, optimizer) -> None:
        self._arena, self._slots, self._trained = arena, optimizer.slots, trained_runs(arena.spans)
        self._update = Update(self._ops, arena, optimizer, arena.grads, everything(arena) if self._trains else [])
        parts = divide(arena.spans, len(self._roles.servers))
        owned = buckets_of(parts, arena.weights.dtype.itemsize, self._bucket_bytes)
        self._spread = self._prepare_spread(owned)
        self._join(
            [[bucket for owner, bucket in reversed(owned) if owner == k] for k in self._roles.servers], len(owned)
        )
        self.notes = [say_load(parts, arena.weights.dtype.itemsize), self._where_state_lives()]

    def _prepare_spread(self, owned) -> Flight:
        """What brings the servers' weights to everybody, at a meeting."""
        trees = Trees(self._transport, self._ops, owned, tree_of(self._transport, 1), self._segment_bytes, self._guard)
        spreads = trees.spreads(self._arena.weights, range(self._transport.size), 0)
        return Flight([bucket for _, bucket in owned], spreads, self._deadline_s)

    def _join(self, owned: Sequence[Sequence[Bucket]], tag: int) -> None:
        """The ends of this rank: a store, if it serves; links to all servers, if it trains. ``owned``: the buckets of
        each server, lowest first; tags are free from ``tag`` on."""
        transport, ops, arena, rank = self._transport, self._ops, self._arena, self._transport.rank
        self._store = self._base = None
        if rank in self._roles.servers:
            trainers = self._roles.trainers
            self._store = Store(transport, ops, owned[rank], trainers, self._staleness, arena.weights.dtype, tag)
        self._links: list[Link] = []
        if self._trains:
            self._base = transport.scratch(arena.count, arena.weights.dtype)
            ends = (arena.grads, self._base)
            self._links = [
                WithinRank(ops, self._store, rank, buckets, *ends)
                if server == rank
                else ToServer(transport, server, buckets, *ends, tag)
                for server, buckets in enumerate(owned)
            ]
        self._coming = [(link, place) for link in self._links for place in range(len(link.buckets))]
        self._home = {
            span.name: at for at, (link, place) in enumerate(self._coming) for span in link.buckets[place].spans
        }
        self._due: set[int] = set()  # places in _coming of weights that have been asked for

    def _where_state_lives(self) -> str:
        return (
            "each rank that trains keeps the optimizer's state, momentum too, of its own updates; updates travel when "
            "backward is done, since they are made of the learning rate and all of a gradient"
        )

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
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
            self._serve()
            if not examples:  # no forward will ask for weights, and gradients are zero at once
                self._land()
        self._here = examples
        self._examples += examples
        self._total += total

    def need(self, span) -> None:
        with self._held():
            self._serve()
            if self._due:
                self._take(self._home[span.name])

    def ready(self, span) -> None:
        with self._held():
            self._serve()

    def finish(self, iteration: int, lr: float) -> None:
        if not self._trains:
            self._keep_pace()
            return
        if self._here:  # who saw nothing has learnt nothing
            self._apply(lr)
        self._since += 1
        if self._since == self._every:
            with self._held():
                self._push()
                if self._overlap != FORWARD:
                    self._land()

    def _apply(self, lr: float) -> None:
        self._update.step += 1
        if self._clip_norm is not None:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm)
        self._update.apply(lr, 0, self._arena.count)

    def _keep_pace(self) -> None:
        """A rank that only serves goes on as one that trains may, so that ranks meet at the same iterations."""
        self._made += 1
        clock = self._store.clock
        with self._held():
            self._wait(lambda: clock.allows(self._made), lambda: f"{peers(clock.late(self._made))} to give an update")

    def serve(self, meanwhile: Callable[[], None]) -> None:
        self._begin()
        self._until_quiet(meanwhile)

    # ── updates go, weights come ──────────────────────────────────────────────────────────────────────────────
    def _begin(self) -> None:
        """The time between two meetings begins; weights are the same on all ranks."""
        if self._open:
            return
        self._open = True
        if self._trains:
            self._ops.copy(self._arena.weights, self._base)
        if self._store is not None:
            self._store.open(self._arena.weights)

    def _push(self) -> None:
        """The change since the last time, in the memory of the gradients, which are not needed any more."""
        ops, change, share = self._ops, self._arena.grads, self._examples / self._total
        self._land()
        for link in self._links:
            self._wait(link.sent, link.awaited)
        ops.copy(self._base, change)
        ops.scale(change, -1.0)
        ops.add(self._arena.weights, change, change)
        ops.scale(change, share)
        ops.synchronize()
        for link in self._links:
            link.push()
        self._due = set(range(len(self._coming)))
        self._since = self._examples = self._total = 0
        self._changed[0] = 1

    def _land(self) -> None:
        """Return when all weights have come that were asked for."""
        for at in sorted(self._due):
            self._take(at)

    def _take(self, at: int) -> None:
        """Return when the weights at this place have come; once for each push."""
        if at not in self._due:
            return
        link, place = self._coming[at]
        self._wait(lambda: link.arrived(place), link.awaited)
        bucket = link.buckets[place]
        self._ops.copy(self._base[bucket.start : bucket.stop], self._arena.weights[bucket.start : bucket.stop])
        self._due.remove(at)

    def _serve(self) -> None:
        if self._store is not None:
            self._store.serve()

    def _wait(self, test: Callable[[], bool], awaited: Callable[[], str]) -> None:
        """Serve until ``test()``."""

        def served() -> bool:
            self._serve()
            return test()

        wait_for(served, self._deadline_s, awaited, self._progress, self._transport.patience)

    def _progress(self) -> int:
        return self._store.clock.version if self._store is not None else 0

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The loop is held up meanwhile."""
        began = time.perf_counter()
        yield
        self._exposed_s += time.perf_counter() - began

    # ── meetings ──────────────────────────────────────────────────────────────────────────────────────────────
    def settle(self) -> None:
        """All updates are pushed and added, and all ranks take the servers' weights."""
        self._begin()
        with self._held():
            self._land()
            if self._since:
                self._push()
                self._land()
            self._say_goodbye()
        self._until_quiet(_nothing)
        self._open = False
        if self._anybody_has_changed():
            self._spread_weights()

    def _say_goodbye(self) -> None:
        for link in self._links:
            self._wait(link.sent, link.awaited)
            link.goodbye()
        for link in self._links:
            self._wait(link.sent, link.awaited)

    def _until_quiet(self, meanwhile: Callable[[], None]) -> None:
        """Serve until all that train are at the meeting."""
        if self._store is None:
            return

        def quiet() -> bool:
            meanwhile()
            return self._store.quiet

        with self._held():
            self._wait(quiet, lambda: f"{peers(self._store.present)} to come to where all ranks meet")

    def _anybody_has_changed(self) -> bool:
        self._transport.native_allreduce_start(self._changed).wait(self._deadline_s)
        changed = bool(self._changed[0])
        self._differs = self._differs or changed
        self._changed[0] = 0
        return changed

    def _spread_weights(self) -> None:
        if self._store is not None:
            self._ops.copy(self._store.weights, self._arena.weights[self._store.start : self._store.stop])
        self._spread.land()

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────
    def state(self) -> dict:
        """Collective: where ranks have states of their own, all take the mean and go on with that, as the run does that
        is resumed here."""
        self.settle()
        share = self._share_of_state()
        self._differs = False
        step = np.array([share * self._update.step])
        self._transport.native_allreduce_start(step).wait(self._deadline_s)
        self._update.step = round(float(step[0]))
        return {STEP: self._update.step, **{name: self._mean(name, share) for name in self._slots}}

    def _share_of_state(self) -> float:
        """The same on all that train; where they have the same state, all of it from the first, so that it is that to
        the last bit."""
        if self._differs:
            return self._trains / len(self._roles.trainers)
        return float(self._transport.rank == self._roles.trainers[0])

    def _mean(self, name: str, share: float) -> np.ndarray:
        ops, total = self._ops, self._arena.grads
        ops.fill(total, 0)
        self._update.place(name, total)
        ops.scale(total, share)
        ops.synchronize()
        self._transport.native_allreduce_start(total).wait(self._deadline_s)
        if self._trains:
            ops.copy(total, self._update.slots[name])
        return ops.to_host(total)

    def check_names(self, names) -> None:
        check_names(names, self._slots)

    def restore(self, state: dict) -> None:
        """What an all-reduce kept will do. Raises CheckpointError where the state is another optimizer's, or of another
        arena."""
        self.check_names(state)
        check_sizes(state, self._arena.count)
        self._update.take(state)

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────
    def lag(self) -> Lag | None:
        if self._store is None:
            return None
        clock = self._store.clock
        return Lag(dict(clock.clock_lags), dict(clock.version_lags), dict(clock.clocks))

    def traffic(self) -> Traffic:
        """Of training; not of meetings."""
        ends = [*self._links, *([self._store] if self._store is not None else [])]
        return Traffic(sum(end.bytes_sent for end in ends), self._exposed_s)

    def close(self) -> None:
        del self._spread, self._links, self._store, self._coming


def _nothing() -> None:
    pass


def _terms(roles: Roles, dedicated: bool, staleness: int | None, every: int) -> str:
    pace = "asynchronous" if staleness is None else f"staleness {staleness}"
    period = f", every {every}" if every > 1 else ""
    return f"{say_servers(roles, dedicated)}, {pace}{period}"
