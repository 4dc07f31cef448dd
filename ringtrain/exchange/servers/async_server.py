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
from dataclasses import replace

import numpy as np

from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange, ExchangeFacts, Lag, Roles, Serving
from ringtrain.exchange.buckets.deferred_update import FORWARD
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.reducers import Reducers
from ringtrain.exchange.buckets.streams import stream_pair
from ringtrain.exchange.servers.endpoint import Endpoint
from ringtrain.exchange.servers.ownership import buckets_of, divide_ownership, roles_of, say_load, say_servers
from ringtrain.exchange.servers.trees import ReductionTrees, tree_of
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.local_update import LocalUpdate
from ringtrain.exchange.update.mean_state import MeanState
from ringtrain.exchange.update.owned_state import OwnedState
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything


class AsyncParameterServer(Exchange, Serving):
    """Updates alone, pushes the changes of weights to servers that add them, and takes weights back.

    Raises ConfigError for more servers than ranks, or than parameters.
    """

    def __init__(self, settings: ExchangeSettings):
        config, transport = settings.config, settings.transport
        self._settings, self._transport, self._ops = settings, transport, settings.ops
        self._streams, self._overlap = stream_pair(settings.ops), config.overlap
        self._roles = roles_of(transport.size, config.servers, config.dedicated)
        self._staleness = None if config.asynchronous else config.staleness
        self._every = config.average_every if config.sync == "averaging" else 1
        self.serving = self
        self.facts = ExchangeFacts(
            name=config.sync,
            header=_header(self._roles, config.dedicated, self._staleness, self._every),
            roles=self._roles,
            exact=False,
            state_is_local=False,
            max_iteration_lag=0 if self._staleness is None else self._staleness + 1,
            dynamic_batches=config.asynchronous,
            all_reduces=False,
        )
        self._open = False  # whether ranks are between two meetings
        self._met = False  # whether servers have all updates, and ranks not yet their weights
        self._since = self._examples = self._total = 0  # since the last push: updates, examples of this rank, of all
        self._made = 0  # iterations
        self._changed = np.zeros(1)  # whether this rank has pushed since weights were last the same everywhere
        self._differs = False  # whether the optimizer's state may differ from rank to rank

    def bind(self, arena, optimizer) -> None:
        transport, ops, config = self._transport, self._ops, self._settings.config
        trains = transport.rank in self._roles.trainers
        self._arena, itemsize = arena, arena.weights.dtype.itemsize
        self._update = OwnedUpdate(ops, arena, optimizer, arena.grads, everything(arena) if trains else [])
        self._alone = LocalUpdate(ops, arena, self._update, config.clip_norm)
        self._mean = MeanState(
            transport, ops, self._update, optimizer.slots, self._roles.trainers, arena.grads, config.deadline_s
        )
        parts = divide_ownership(arena.spans, len(self._roles.servers))
        owned = buckets_of(parts, itemsize, config.bucket_bytes)
        by_server = [[bucket for owner, bucket in reversed(owned) if owner == k] for k in self._roles.servers]
        self._ends = Endpoint(
            *(transport, self._streams, arena, self._roles, parts, by_server),
            *(self._staleness, config.deadline_s, len(owned)),
        )
        self._spread = self._prepare_spread(owned)
        self.owned_state = OwnedState(self._update, self.synchronize, gather=self._gather)
        self.reducers = Reducers({}, others=[self._spread], messages=[self._ends])
        self.facts = replace(self.facts, notes=[say_load(parts, itemsize), texts.OWN_STATE])

    def _prepare_spread(self, owned) -> Reducer:
        """Broadcasts of the servers' weights to all ranks, for :meth:`synchronize`."""
        transport, own, config = self._transport, self._streams.own, self._settings.config
        tree = tree_of(transport, 1)
        trees = ReductionTrees(transport, own, owned, tree, config.segment_bytes, self._settings.guard)
        spreads = trees.spreads(self._arena.weights, range(transport.size), 0)
        return Reducer([bucket for _, bucket in owned], spreads, config.deadline_s, streams=self._streams)

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._streams.own.add(nothing, nothing, nothing)
        self._streams.own.copy(nothing, nothing)
        self._ops.add(nothing, nothing, nothing)
        self._ops.copy(nothing, nothing)
        self._ops.fill(nothing, 0)
        self._alone.rehearse()

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
        if self._here:  # a rank without examples has nothing to learn from
            self._update.step += 1
            self._alone.apply(lr)
        self._since += 1
        if self._since == self._every:
            with self._held():
                self._push()

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
        self._ends.exposed_s += time.perf_counter() - began

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
        self._transport.native_allreduce_start(self._changed).wait(self._settings.config.deadline_s)
        changed = bool(self._changed[0])
        self._changed[0] = 0
        return changed

    def _gather(self) -> dict:
        """The mean of the ranks' states, with which all of them go on, as a resumed run does."""
        taken = self._mean.take(self._differs)
        self._differs = False
        return taken

    def lag(self) -> Lag | None:
        if self._ends.store is None:
            return None
        clock = self._ends.store.clock
        return Lag(dict(clock.clock_lags), dict(clock.version_lags), dict(clock.clocks))


def _nothing() -> None:
    pass


def _header(roles: Roles, dedicated: bool, staleness: int | None, every: int) -> str:
    servers = say_servers(roles, dedicated)
    free = staleness is None
    terms = texts.ASYNCHRONOUS(servers=servers) if free else texts.STALENESS(servers=servers, staleness=staleness)
    return texts.EVERY_MORE(terms=terms, count=every) if every > 1 else terms
