"""Workers update alone, push the changes of their weights to servers that add them, and pull weights. Approximate.

A worker makes the optimizer's step by the gradient of its own part of the batch. The change since its last pull, times
its share of the examples, goes to the servers. A server adds it on arrival, and answers as the staleness allows
(:mod:`ringtrain.exchange.servers.staleness`). With a quorum the whole change and the number of its examples go, and a
server makes their mean a step (:mod:`ringtrain.exchange.servers.outer_merge`).

*The state of the optimizer, momentum included, lives at the workers*: for sgd and nesterov the sum of their steps is
the step with the sum of their gradients. With asynchronous averaging a worker makes H updates between two pushes.

A change depends on the learning rate and the whole gradient, so nothing travels while backward runs. With ``--overlap
forward`` each layer waits for its own weights alone, the lowest first.

Memory: at a worker the weights of its last pull; at a server its shard, and a change of it from each worker.

Source: Ho et al., NIPS 2013, and Cui et al., Exploiting bounded staleness to speed up big data analytics, ATC 2014
(staleness; servers that add); Dean et al., Large scale distributed deep networks, NIPS 2012 (asynchronous); Zhang,
Choromanska & LeCun, Deep learning with elastic averaging SGD, NIPS 2015 (changes of weights, asynchronously averaged).
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.base import Exchange, ExchangeFacts, Lag, OwnedState, Serving
from ringtrain.exchange.buckets.deferred_update import FORWARD
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.parts import has_outer_step, parts_of
from ringtrain.exchange.servers.endpoint import Endpoint
from ringtrain.exchange.servers.outer_merge import OuterMomentum
from ringtrain.exchange.servers.shards import roles_of, server_shards
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.difference import subtract
from ringtrain.exchange.update.example_share import ExampleShare
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer
from ringtrain.transport.loopback import Loopback

PERIODS_END = "evaluations and checkpoints end the periods of --average-every: ranks push, and pull weights"


class Phase(Enum):
    EQUAL = "all ranks have the same weights"
    APART = "workers push and pull"
    DRAINED = "the servers have all updates, and the other ranks do not yet have these weights"
    ALONE = "another rank has died, and this one keeps what it has"


class ChangePush(Exchange, Serving):
    """Updates all weights alone, pushes the changes to the servers, and pulls weights. At a meeting, before an
    evaluation, a checkpoint and the end, it drains the updates of all workers, and brings the servers' weights to all
    ranks. Raises ConfigError for more servers than ranks, or, when it is bound, than parameters."""

    def __init__(self, settings: ExchangeSettings):
        self._settings, self._ops, config = settings, settings.ops, settings.config
        parts = parts_of(config)
        self._forward, self._every, staleness = config.overlap == FORWARD, parts.every, parts.apart
        self._roles, servers = roles_of(settings.transport.size, config)
        terms = "asynchronous" if staleness is None else f"staleness {staleness}"
        terms = terms if config.quorum is None else _quorum(config, len(self._roles.trainers))
        every = f", every {self._every}" if self._every > 1 else ""
        self.facts = ExchangeFacts(
            name=config.strategy,
            header=f"{servers}, {terms}{every}",
            roles=self._roles,
            exact=False,
            state_is_local=False,
            max_iteration_lag=staleness + 1 if staleness else 0,
            survives_rank_loss=config.asynchronous and self._roles.servers == (settings.transport.rank,),
            dynamic_batches=config.asynchronous,
            all_reduces=False,
        )

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        settings, roles, transport = self._settings, self._roles, self._settings.transport
        self._arena = arena
        self._is_worker = transport.rank in roles.trainers
        pieces = everything(arena) if self._is_worker else []
        self._update = OwnedUpdate(self._ops, arena, optimizer, arena.grads, pieces, settings.clip_norm)
        self._add = SumOverRanks(settings)
        self._first, self._workers = transport.rank == roles.trainers[0], len(roles.trainers)
        shards, load = server_shards(settings, arena, len(roles.servers))
        self._weights = shards.spreads(arena.weights, range(transport.size))
        self._endpoint = Endpoint(settings, roles, shards, arena)
        shard = self._endpoint.shard
        outer = None if shard is None else shard.outer
        self.serving = self
        self._phase, self._states_differ = Phase.EQUAL, False  # whether the optimizer's state may differ between ranks
        self.reducers = Reducers({}, others=[self._weights], messages=[self._endpoint])
        self.rehearsed = [self._update, *([outer] if outer else [])]
        parts = [OuterMomentum(self._ops, arena, outer, self._add.add)] if settings.config.quorum else []
        self.owned_state = OwnedState(self._update, self.synchronize, gather=self._gather, parts=parts)
        self._examples = ExampleShare()
        self._since = self._iterations = 0  # updates since the last push; iterations
        trainers, quorum = len(roles.trainers), settings.config.quorum or 0
        few = f"--quorum {quorum} is more than the {trainers} ranks that train: a round waits for all of them"
        notes = [
            load,
            *([few] if quorum > trainers else []),
            "each rank that trains keeps the optimizer's state, with momentum, of its own updates; it sends them after "
            "backward, since they need the learning rate and the whole gradient",
        ]
        if self._every > 1:
            notes.append(PERIODS_END)
        self.facts = replace(self.facts, notes=notes)

    def denominator(self, local: float, total: float) -> float:
        return local

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._begin()
        with self._endpoint.exposed():
            self._endpoint.serve()
            if not examples:  # no forward pass waits for weights, and gradients are zeroed at once
                self._endpoint.pull_all()
        self._examples.add(examples, total)

    def before_read(self, span: Span) -> None:
        with self._endpoint.exposed():
            self._endpoint.serve()
            self._endpoint.pull(span)

    def grad_ready(self, span: Span) -> None:
        with self._endpoint.exposed():
            self._endpoint.serve()

    def finish(self, iteration: int, lr: float) -> None:
        self._iterations += 1
        if not self._is_worker:
            with self._endpoint.exposed():
                self._endpoint.keep_pace(self._iterations)
            return
        if self._examples.local:  # a rank without examples makes no update
            self._update.make(lr)
        self._since += 1
        if self._since == self._every:
            with self._endpoint.exposed():
                self._push()

    def _push(self) -> None:
        """Push the change since the last pull, in the memory of the gradients, which are free now."""
        ops, change = self._ops, self._arena.grads
        self._endpoint.pull_all()
        subtract(ops, self._arena.weights, self._endpoint.pulled, change)
        examples, share = int(self._examples.counts[0]), self._examples.take()
        if self._settings.config.quorum is None:  # else the mean of a round is weighted by examples
            ops.scale(change, share)
        self._endpoint.push(ops.mark(), examples)
        self._since = 0
        if not self._forward:
            self._endpoint.pull_all()

    # ── meetings ──────────────────────────────────────────────────────────────────────────────────────────────
    def _begin(self) -> None:
        """Let workers push and pull from now on."""
        if self._phase is Phase.DRAINED:
            self.synchronize()
        if self._phase is Phase.EQUAL:
            self._phase = Phase.APART
            self._endpoint.open()

    def poll(self) -> None:
        self._endpoint.serve()

    def serve(self, meanwhile: Callable[[], None]) -> None:
        self._begin()
        self._endpoint.serve_until_quiet(meanwhile)

    def drain_peers(self) -> None:
        if self._phase is Phase.DRAINED:
            return
        self._begin()
        self._endpoint.pull_all()
        if self._since:  # the updates of a period that is not over
            self._push()
            self._endpoint.pull_all()
        self._endpoint.goodbye()
        self._endpoint.serve_until_quiet(lambda: None)
        self._phase = Phase.DRAINED

    def outlive(self) -> None:
        """Keep the weights and the momentum of the one server: all changes that it has merged."""
        if self._phase is not Phase.EQUAL:
            self._endpoint.publish()
        self._phase, self._add.transport = Phase.ALONE, Loopback()
        self._states_differ, self._workers = True, 1

    def synchronize(self) -> None:
        """Bring the servers' weights to all ranks, unless no worker has pushed since the last time."""
        if self._phase is Phase.ALONE:
            return
        self.drain_peers()
        pushed, self._endpoint.has_pushed = self._endpoint.has_pushed, False
        if self._add(pushed):
            self._states_differ = True
            self._endpoint.publish()
            self._weights.wait_all()
        self._phase = Phase.EQUAL

    def lag(self) -> Lag | None:
        return None if self._endpoint.shard is None else self._endpoint.shard.clock.lag()

    def _gather(self) -> dict:
        """Return the mean of the workers' states on all ranks; each keeps its own. Where they do not differ it is the
        first worker's, to the bit."""
        share = self._is_worker / self._workers if self._states_differ else float(self._first)
        mean = self._update.gathered(self._arena.grads, lambda: self._add_shares(share))
        return mean | {STEP: round(self._add(share * self._update.step))}

    def _add_shares(self, share: float) -> None:
        grads = self._arena.grads
        self._ops.scale(grads, share) if share else self._ops.fill(grads, 0)
        self._ops.synchronize()
        self._add.add(grads)


def _quorum(config: ExchangeConfig, workers: int) -> str:
    """ "quorum 3 of 4, grace 2 s, outer momentum 0.9, rate 0.7" """
    words = [f"quorum {min(config.quorum or 1, workers)} of {workers}"]
    if config.grace_s:
        words.append(f"grace {config.grace_s:g} s")
    if has_outer_step(config):
        words.append(f"outer momentum {config.outer_momentum:g}, rate {config.outer_lr:g}")
    return ", ".join(words)
