"""Every H iterations a rank mixes its weights with those of a few others, and updates them by its own gradients.
Approximate.

1.  At the start of the last iteration of a period a rank sends its weights to its partners of that turn, and receives
    theirs. These travel while forward and backward compute, at the rank's own weights.
2.  The weights become the mean of all these, and are updated by the gradient: taken at the weights before the mean, of
    the rank's own part of the batch, over which the loss is the mean.

A rank waits only for its partners (:mod:`ringtrain.exchange.strategies.gossip_graphs`), which are in the same turn,
and adds weights in the order of ranks: a run can be repeated. It cannot deadlock: in a turn all messages start before
any is waited for, and the rank that is furthest behind waits for none. Mixing leaves the mean over all ranks as it is.
A rank without examples makes no update, and mixes all the same. An evaluation or a checkpoint sees the mean over all
ranks; each goes on with its own weights and state.

With an *outer step* (:class:`SlowWeights`) a rank updates first and mixes then, and nothing else goes on meanwhile.

Bytes: every H iterations a rank sends n to each rank that takes its weights: to 1 with pairs and the exponential graph,
to 2 on a ring, for any number of ranks and with an outer step too. Memory: n for each rank whose weights it takes.

Source: Lian, Zhang, Zhang & Liu, Asynchronous Decentralized Parallel SGD, ICML 2018 (AD-PSGD); Assran, Loizou, Ballas &
Rabbat, Stochastic Gradient Push, ICML 2019 (directed graphs); Kolehmainen et al., NoLoCo, 2025 (outer step).
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ringtrain.arrays import Array
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange import tags
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, RankState, RankStates, all_train
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reducer import Reducers
from ringtrain.exchange.parts import has_outer_step
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.gossip_graphs import PAIRS, Turn, make_turns
from ringtrain.exchange.strategies.outer_step import OuterOptimizer
from ringtrain.exchange.strategies.rank_averages import MEAN_ASIDE, RankAverages
from ringtrain.exchange.update.outer_rule import OuterRule
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import Optimizer
from ringtrain.transport.base import Handle
from ringtrain.transport.waiting import wait_for


class Gossip(Exchange):
    """Mixes this rank's weights with its partners' every H iterations."""

    def __init__(self, settings: ExchangeSettings):
        config, transport = settings.config, settings.transport
        self._settings, self._every = settings, config.gossip_every
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
        settings, ranks = self._settings, self._settings.transport
        self._turns = make_turns(settings.config.gossip_graph, ranks.rank, ranks.size, settings.seed)
        pieces, clip_norm = everything(arena), settings.clip_norm
        self._update = OwnedUpdate(settings.ops, arena, optimizer, arena.grads, pieces, clip_norm)
        sums = self._reduction.bind(arena.spans, arena.grads, weights=True)
        self._averages = averages = RankAverages(settings, arena, self._update, sums)
        self._partners = PartnerWeights(settings, arena, self._turns)
        slow = [self._slow] if self._slow else []
        for each in slow:
            each.bind(arena)
        alike, gather = (lambda: not averages.differs), averages.gather
        states = RankStates([averages, *slow])
        self.owned_state = OwnedState(self._update, self.synchronize, gather, alike, rank_state=states)
        self.rehearsed = [self._update, self._reduction, *slow]
        self.reducers = Reducers(
            {"means": sums}, messages=[self._partners], buckets=False, before_close=self._partners.free
        )
        notes = [*self._reduction.notes, *([MEAN_ASIDE] if any(turn.gives for turn in self._turns) else [])]
        state_bytes = self._update.nbytes + self._partners.nbytes + sum(each.nbytes for each in slow)
        self.facts = replace(self.facts, notes=notes, state_bytes=state_bytes)

    def denominator(self, local: float, total: float) -> float:
        return local

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._examples = examples
        self._averages.go_on()
        self._averages.forget_examples()  # ranks count alike in means, also after a run that averaged
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
            self._partners.mix(turn)
        if self._examples:
            self._update.make(lr)
        else:
            self._update.count()
        if ends and self._slow:
            self._partners.start(turn)
            self._partners.mix(turn)
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
    ]
    return ", ".join(filter(None, [*words, f"up to {config.gossip_max_lag} iterations apart"]))


class SlowWeights(OuterOptimizer, RankState):
    """The outer step of gossip: from a rank's slow weights, those that its period began at, towards its partners'.

    With the means over the turn's partners, itself among them, with slow weights phi and weights theta:

        delta = momentum·delta + lr·(mean(theta) - phi)
        phi   = theta = phi + delta

    Running statistics take the mean.

    Source: Kolehmainen et al., NoLoCo, 2025: in pairs, with a heavy ball's momentum; as in their program the rate of
    the step towards the partners' former weights is lr, by which mean(phi) drops out.
    """

    def __init__(self, settings: ExchangeSettings):
        super().__init__(settings)
        config = settings.config
        # Its momentum is -delta / lr.
        self._rule = OuterRule(settings.ops, config.outer_momentum, config.outer_lr, "sgd")
        self.differs = False  # from the first period on, also of one rank alone

    def begin(self) -> None:
        if not self.differs:
            super().begin()
        self.differs = True

    def arrays(self) -> dict[str, Array]:
        return self.slots

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        self.restore(arrays)
        self.differs = True


class PartnerWeights:
    """Exchanges weights with the partners of one of ``turns`` at a time. ``nbytes``: of the partners' weights."""

    def __init__(self, settings: ExchangeSettings, arena: Arena, turns: Sequence[Turn]):
        transport, self._turns = settings.transport, turns
        self._rank = rank = transport.rank
        self._ops, self._deadline_s, self._weights = settings.ops, settings.config.deadline_s, arena.weights
        most = max(len(turn.takes) for turn in turns) - 1
        self._theirs = [transport.scratch(arena.count, arena.weights.dtype) for _ in range(most)]
        self._bytes = arena.count * arena.weights.dtype.itemsize
        self.nbytes = most * self._bytes
        self._handles: list[tuple[Handle, ...]] = []
        for turn in turns:
            recvs = list(zip((each for each in turn.takes if each != rank), self._theirs, strict=False))
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

    def mix(self, turn: int) -> None:
        """Wait for the partners' weights, and replace this rank's by the mean of all, added in the order of ranks."""
        wait_for(self._start_final, self._deadline_s, lambda: "this rank's device to make its weights final")
        began = time.perf_counter()
        for handle in self._in_flight:
            handle.wait(self._deadline_s)
        self._in_flight = ()
        self.exposed_s += time.perf_counter() - began
        ops, theirs, takes = self._ops, iter(self._theirs), self._turns[turn].takes
        total, *others = [self._weights if rank == self._rank else next(theirs) for rank in takes]
        for each in others[:-1]:
            ops.add(total, each, total)
        for each in others[-1:]:
            ops.add(total, each, self._weights)
            ops.scale(self._weights, 1 / len(takes))

    def free(self) -> None:
        """Release the messages."""
        for handle in (each for handles in self._handles for each in handles):
            handle.free()
