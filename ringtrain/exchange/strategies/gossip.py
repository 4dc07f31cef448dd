"""Every H iterations a rank mixes its weights with those of a few others, and updates them by its own gradients.
Approximate.

1.  At the start of the last iteration of a period a rank sends its weights to its partners of that turn, and receives
    theirs. These travel while forward and backward compute, at the rank's own weights.
2.  The weights become the mean of both, by the shares of the graph, and are updated by the gradient: taken at the
    weights before the mean, of the rank's own part of the batch, over which the loss is the mean.

A rank waits only for its partners (:mod:`ringtrain.exchange.strategies.gossip_graphs`), which are in the same turn,
and adds weights in the order of ranks: a run can be repeated. It cannot deadlock: in a turn all messages start before
any is waited for, and the rank that is furthest behind waits for none. Mixing leaves the mean over all ranks as it is,
by push weights where these differ. A rank without examples makes no update, and mixes all the same. An evaluation or a
checkpoint sees the mean over all ranks; each goes on with its own weights and state.

With an *outer step* (:class:`SlowWeights`) a rank updates first and mixes then, and nothing else goes on meanwhile.

Bytes: every H iterations a rank sends n to each rank that takes its weights: to 1 with pairs and the exponential graph,
to 2 on a ring, for any number of ranks and with an outer step too. Memory: n for each rank whose weights it takes.

Source: Lian, Zhang, Zhang & Liu, Asynchronous Decentralized Parallel SGD, ICML 2018 (AD-PSGD); Assran, Loizou, Ballas &
Rabbat, Stochastic Gradient Push, ICML 2019 (directed graphs); Kolehmainen et al., NoLoCo, 2025 (outer step).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ringtrain.arrays import Array
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError, everywhere
from ringtrain.exchange import tags
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, RankState, RankStates, all_train
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.parts import has_outer_step
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.gossip_graphs import PAIRS, PushWeights, Turn, make_turns
from ringtrain.exchange.strategies.outer_step import OuterOptimizer
from ringtrain.exchange.strategies.rank_averages import MEAN_ASIDE, RankAverages
from ringtrain.exchange.update.outer_rule import OuterRule
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer
from ringtrain.transport.base import Handle
from ringtrain.transport.waiting import wait_for

NO_MEAN = (
    "has rows that sum to another number than 1, and --outer-momentum, --outer-lr and --consensus-rate take a mean of "
    "partners: let each row sum to 1, or leave these options out"
)


class Gossip(Exchange):
    """Mixes this rank's weights with its partners' every H iterations."""

    def __init__(self, settings: ExchangeSettings):
        config, transport = settings.config, settings.transport
        self._settings, self._every, self._rank = settings, config.gossip_every, transport.rank
        self._slow = SlowWeights(settings) if has_outer_step(config) else None
        self.facts = ExchangeFacts(
            name="gossip",
            header=_header(config),
            roles=all_train(transport.size),
            exact=False,
            state_is_local=False,
            max_iteration_lag=config.gossip_max_lag,
        )
        self._reduction = BucketedAllReduce(settings)
        self._examples = 0  # examples of this iteration, on this rank

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        ops, clip_norm, config = self._settings.ops, self._settings.clip_norm, self._settings.config
        self._turns, matrices = make_turns(config.gossip_graph, self._settings.transport, self._settings.seed)
        self._push = None if matrices is None else PushWeights(matrices)
        if self._slow and self._push:
            raise everywhere(UsageError(f"--gossip-graph {config.gossip_graph} {NO_MEAN}"))
        self._update = OwnedUpdate(ops, arena, optimizer, arena.grads, everything(arena), clip_norm)
        sums = self._reduction.bind(arena.spans, arena.grads, weights=True)
        self._averages = averages = RankAverages(self._settings, arena, self._update, sums)
        self._count_ranks()
        self._partners = PartnerWeights(self._settings, arena, self._turns)
        slow = [self._slow] if self._slow else []
        for each in slow:
            each.bind(arena)
        alike, gather = (lambda: not averages.differs), averages.gather
        states = RankStates([averages, *slow, *([self._push] if self._push else [])])
        self.owned_state = OwnedState(self._update, self.synchronize, gather, alike, rank_state=states)
        self.rehearsed = [self._update, self._reduction, *slow]
        self.reducers = Reducers(
            {"means": sums}, messages=[self._partners], buckets=False, before_close=self._partners.free
        )
        notes = [*self._reduction.notes, *([MEAN_ASIDE] if any(turn.gives for turn in self._turns) else [])]
        state_bytes = self._update.nbytes + self._partners.nbytes + sum(each.nbytes for each in slow)
        self.facts = replace(self.facts, notes=notes, state_bytes=state_bytes)

    def _count_ranks(self) -> None:
        """Let ranks count in means by their push weights; without any alike, also after a run that averaged."""
        self._averages.forget_examples()
        if self._push:
            self._averages.examples[-1].counts = np.array([self._push.weights[self._rank], self._push.weights.size])

    def denominator(self, local: float, total: float) -> float:
        return local

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._examples = examples
        self._averages.go_on()
        self._count_ranks()
        if self._slow:
            self._slow.begin()
        elif (iteration + 1) % self._every == 0:
            self._partners.start(self._turn(iteration))

    def _turn(self, iteration: int) -> int:
        return iteration // self._every % len(self._turns)

    def before_read(self, span: Span) -> None:
        self._partners.test()

    def grad_ready(self, span: Span) -> None:
        self._partners.test()

    def finish(self, iteration: int, lr: float) -> None:
        ends, turn = (iteration + 1) % self._every == 0, self._turn(iteration)
        if ends and not self._slow:
            self._partners.mix(self._push.push(turn, self._rank) if self._push else self._turns[turn].takes)
            self._count_ranks()
        if self._examples:
            self._update.make(lr / self._push.weights[self._rank] if self._push else lr)
        else:
            self._update.count()
        if ends and self._slow:
            self._slow.add(self._slow.factor)
            self._partners.start(turn)
            self._partners.mix(self._turns[turn].takes)
            self._slow.add(-self._slow.factor)
            self._slow.step()
        self._averages.diverge()

    def synchronize(self) -> None:
        self._averages.show_mean()

    @property
    def distance(self) -> float | None:
        return self._averages.distance


def _header(config: ExchangeConfig) -> str:
    words = [
        f"graph {config.gossip_graph}" * (config.gossip_graph != PAIRS),
        f"every {config.gossip_every}" * (config.gossip_every > 1),
        f"outer momentum {config.outer_momentum:g}, rate {config.outer_lr:g}" * has_outer_step(config),
        f"consensus rate {config.consensus_rate}" * (config.consensus_rate is not None),
    ]
    return ", ".join(filter(None, [*words, f"up to {config.gossip_max_lag} iterations apart"]))


class SlowWeights(OuterOptimizer, RankState):
    """The outer step of gossip: from a rank's slow weights, those that its period began at, towards its partners'.

    With the means over the turn's partners, itself among them, with slow weights phi and weights theta:

        delta = momentum·delta + lr·mean(theta - phi) - rate·(phi - mean(phi))
        phi   = theta = phi + delta

    ``rate`` is --consensus-rate, as ``lr`` without it: then phi drops out of the means. With another rate a rank sends
    the one array theta + (rate/lr - 1)·phi, whose mean is all that is needed. Running statistics take the mean.

    Source: Kolehmainen et al., NoLoCo, 2025: in pairs, with a heavy ball's momentum; in their program rate is lr.
    """

    def __init__(self, settings: ExchangeSettings):
        super().__init__(settings)
        config = settings.config
        # Its momentum is -delta / lr.
        self._rule = OuterRule(settings.ops, config.outer_momentum, config.outer_lr, "sgd")
        self.factor = 0.0 if config.consensus_rate is None else config.consensus_rate / config.outer_lr - 1
        self.differs = False  # from the first period on, also of one rank alone

    def begin(self) -> None:
        if not self.differs:
            super().begin()
        self.differs = True

    def add(self, factor: float) -> None:
        """Add the slow weights, times the factor, to the weights, by way of the gradients, which are not needed."""
        ops, weights = self._ops, self._arena.weights
        for each in self._whole.ranges if factor else ():
            part, spare = weights[each.start : each.stop], self._arena.grads[each.start : each.stop]
            ops.copy(self._slow[each.start : each.stop], spare)
            ops.scale(spare, factor)
            ops.add(part, spare, part)

    def arrays(self) -> dict[str, Array]:
        return self.slots

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        self.restore(arrays)
        self.differs = True


class PartnerWeights:
    """Exchanges weights with the partners of one of ``turns`` at a time. ``nbytes``: of the partners' weights."""

    def __init__(self, settings: ExchangeSettings, arena: Arena, turns: Sequence[Turn]):
        transport, self._turns, self._rank = settings.transport, turns, settings.transport.rank
        self._ops, self._deadline_s, self._weights = settings.ops, settings.config.deadline_s, arena.weights
        most = max(len(turn.takes) for turn in turns) - 1
        self._theirs = [transport.scratch(arena.count, arena.weights.dtype) for _ in range(most)]
        self._bytes = arena.count * arena.weights.dtype.itemsize
        self.nbytes = most * self._bytes
        self._handles: list[tuple[Handle, ...]] = []
        for turn in turns:
            recvs = list(zip((each for each in turn.takes if each != self._rank), self._theirs, strict=False))
            sends = [(each, arena.weights) for each in turn.gives]
            # Receives start before sends, so that no message arrives unexpected.
            kinds = (transport.recvs, recvs), (transport.sends, sends)
            self._handles.append(tuple(make(moves, tags.GOSSIP) for make, moves in kinds if moves))
        self._due: tuple[Handle, ...] = ()  # to start when the mark _final is done
        self._in_flight: tuple[Handle, ...] = ()
        self.bytes_sent, self.exposed_s = 0, 0.0

    def start(self, turn: int) -> None:
        """Start the messages of this turn when the weights are final on this rank's device."""
        self._due, self._final = self._handles[turn], self._ops.mark()
        self._start_final()
        self.bytes_sent += self._bytes * len(self._turns[turn].gives)

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

    def mix(self, shares: Mapping[int, float]) -> None:
        """Wait for the partners' weights, and replace this rank's by the sum of all in the order of ranks, each times
        its share."""
        wait_for(self._start_final, self._deadline_s, lambda: "this rank's device to make its weights final")
        began = time.perf_counter()
        for handle in self._in_flight:
            handle.wait(self._deadline_s)
        self._in_flight = ()
        self.exposed_s += time.perf_counter() - began
        ops, theirs = self._ops, iter(self._theirs)
        arrays = [self._weights if rank == self._rank else next(theirs) for rank in shares]
        for array, share in zip(arrays, shares.values(), strict=True):
            if share != shares[self._rank]:
                ops.scale(array, share / shares[self._rank])
        total, *others = arrays
        for each in others[:-1]:
            ops.add(total, each, total)
        for each in others[-1:]:
            ops.add(total, each, self._weights)
            ops.scale(self._weights, shares[self._rank])

    def free(self) -> None:
        """Release the messages."""
        for handle in (each for handles in self._handles for each in handles):
            handle.free()
