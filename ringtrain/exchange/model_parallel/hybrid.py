"""Convolutions data-parallel, the fully connected layers at the end model-parallel. Exact where the inner exchange is.

Fully connected layers hold most of the parameters of the networks that have them, and little of the work. So their
weights stay where they are, and activations travel:

1.  Each rank computes its convolutions for its own examples.
2.  The features of all examples are gathered on every rank.
3.  Each rank computes its columns of a fully connected layer, num_output/p of them, for all examples; the columns are
    gathered; and so on for each layer. Of the last one each rank takes all columns of its own examples, and the loss.
4.  Backward each rank has one term of the gradient of a layer's input: they are summed and scattered, so that each rank
    has its own columns of it, or at the convolutions its own examples.
5.  The gradients of a rank's columns are whole already: no other rank has any. It updates them alone, and keeps the
    optimizer's state of those alone. All other gradients go through the inner exchange.

The arena is whole on every rank, and its part of the divided layers is brought up to date by
:meth:`Hybrid.synchronize`.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringtrain.errors import ConfigError
from ringtrain.exchange import texts
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.model_parallel.column_shards import ColumnShards
from ringtrain.exchange.model_parallel.hybrid_layers import divided, trailing
from ringtrain.exchange.model_parallel.microbatches import MicrobatchLayouts
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import STEP, check_sizes
from ringtrain.nn.arena import Arena
from ringtrain.nn.layers import Linear


@dataclass(frozen=True, slots=True)
class HybridCost:
    """features:   D
    units:      columns of each layer, in order
    parameters: of all of them
    learning:   whether anything is learnt before them, so that features have a gradient
    """

    features: int
    units: Sequence[int]
    parameters: int
    learning: bool = True

    def divided(self, batch: int, ranks: int) -> float:
        features = (1 + self.learning) * self.features
        each = features + 2 * sum(self.units[:-1]) + 2 * self.units[-1] / ranks
        return (ranks - 1) / ranks * batch * each

    def gradients(self, ranks: int) -> float:
        return 2 * (ranks - 1) / ranks * self.parameters

    def words(self, batch: int, ranks: int) -> str:
        """The saving, for people."""
        if ranks == 1:
            return texts.HYBRID_ONE_RANK
        here, there = self.divided(batch, ranks), self.gradients(ranks)
        sends = texts.HYBRID_SENDS(numbers=_count(here), others=_count(there))
        if here < there:
            return texts.HYBRID_LESS(sends=sends, share=1 - here / there)
        return texts.HYBRID_MORE(sends=sends)


def _count(elements: float) -> str:
    """ "3.44 million", "12,345" """
    return f"{elements / 1e6:.3g} million" if elements >= 1e6 else f"{elements:,.0f}"


class Hybrid(Exchange):
    """make_inner: of what is not divided"""

    state_is_local = False
    within_passes = True

    def __init__(self, kit: ExchangeSettings, make_inner: Callable[[ExchangeSettings], Exchange]):
        self._kit, self._ops, self._transport = kit, kit.ops, kit.transport
        self._limit = kit.config.clip_norm
        self._inner = make_inner(replace(kit, beside=self._with_columns))
        self.name, self.terms = self._inner.name, f"{self._inner.terms} {texts.WITH_HYBRID}".strip()
        self._passes, self._columns = MicrobatchLayouts(kit), ColumnShards(kit)
        self._norm = 0.0  # of the gradient of this iteration, where it is clipped
        self._loaded = False  # whether columns have been taken from the arena
        self._newer = False  # whether they are newer than those in the arena

    def prepare(self, graph):
        """Raises ConfigError for a network that has nothing to divide, or not enough."""
        first = trailing(graph.plan)
        if first is None:
            raise ConfigError(texts.HYBRID_NO_LAYERS(model=self._kit.config.model))
        layers = [node.layer for node in graph.plan[first:] if isinstance(node.layer, Linear)]
        for layer in layers:
            if layer.units < self._transport.size:
                raise ConfigError(
                    texts.HYBRID_FEW_COLUMNS(layer=layer.name, units=layer.units, size=self._transport.size)
                )
        self._layers = layers
        self._features = graph.shapes[graph.plan[first].inputs[0]][0]
        return divided(graph, first, self._passes, self._columns)

    def bind(self, arena, optimizer) -> None:
        names = {layer.name for layer in self._layers}
        ours = [span for span in arena.spans if span.name.rpartition(".")[0] in names]
        self._arena, self._cut = arena, ours[0].start  # they are the last
        rest = _beginning(arena, len(arena.spans) - len(ours))
        self._others = {span.name for span in rest.spans}
        self._inner.bind(rest, type(optimizer)(rest.spans, optimizer.hyper))
        self._columns.bind(ours, optimizer)
        self.exact = self._inner.exact
        parameters = sum(span.count for span in ours)
        cost = HybridCost(
            self._features, [layer.units for layer in self._layers], parameters, learning=bool(rest.spans)
        )
        self.notes = [self._words(cost), *self._inner.notes]

    def _words(self, cost: HybridCost) -> str:
        size, named = self._transport.size, ", ".join(layer.name for layer in self._layers)
        return texts.HYBRID(layers=named, size=size, cost=cost.words(self._kit.config.batch, size))

    def rehearse(self) -> None:
        self._inner.rehearse()
        self._columns.rehearse()
        nothing = self._arena.grads[:0]
        self._ops.add(nothing, nothing, nothing)

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def denominator(self, local: float, total: float) -> float:
        return self._inner.denominator(local, total)

    def before(self, iteration: int, examples: int, total: int) -> None:
        if not self._loaded:
            self._columns.load(self._arena.weights)
            self._loaded = True
        self._passes.iterate(total)
        self._inner.before(iteration, examples, total)

    def before_read(self, span) -> None:
        if span.name in self._others:
            self._inner.before_read(span)

    def grad_ready(self, span) -> None:
        if span.name in self._others:
            self._inner.grad_ready(span)

    def cuts(self):
        return self._inner.cuts()

    def waits(self):
        return self._inner.waits()

    def finish(self, iteration: int, lr: float) -> None:
        """Columns are updated while the inner exchange is under way, unless they wait for the norm that it finds."""
        self._newer = True
        if self._limit is None:
            self._columns.apply(lr)
            self._inner.finish(iteration, lr)
            return
        self._inner.finish(iteration, lr)
        if self._norm > self._limit:
            self._columns.scale(self._limit / self._norm)
        self._columns.apply(lr)

    def _with_columns(self, squares: float) -> float:
        """From the sum of squares of the gradients that the inner exchange clips to that of all."""
        own = np.array([self._columns.square_sum()])
        self._transport.native_allreduce_start(own).wait(self._kit.config.deadline_s)
        squares += float(own[0])
        self._norm = math.sqrt(squares)
        return squares

    def synchronize(self) -> None:
        self._inner.synchronize()
        if self._newer:
            self._columns.store(self._arena.weights)
            self._newer = False

    # ── state: as if nothing were divided ─────────────────────────────────────────────────────────────────────
    def state(self) -> dict:
        """Collective. In the memory of the columns' gradients in the arena, which nobody uses."""
        inner = self._inner.state()
        step = inner.pop(STEP)
        return {STEP: step, **{name: np.concatenate([flat, self._gathered(name)]) for name, flat in inner.items()}}

    def _gathered(self, name: str) -> np.ndarray:
        self._columns.store_slot(name, self._arena.grads)
        return self._ops.to_host(self._arena.grads[self._cut :])

    def kept(self):
        """But for columns: those of the weights come to all ranks, and are looked at there."""
        return self._inner.kept()

    def check_names(self, names) -> None:
        self._inner.check_names(names)

    def restore(self, state: dict) -> None:
        """Raises CheckpointError where the state is another optimizer's, or of another arena."""
        self.check_names(state)
        check_sizes(state, self._arena.count)
        self._inner.restore({name: value if name == STEP else value[: self._cut] for name, value in state.items()})
        for name in self._columns.slots:
            self._ops.upload(state[name][self._cut :], self._arena.grads[self._cut :])
            self._columns.load_slot(name, self._arena.grads)
        self._columns.begin_at(int(state[STEP]))
        self._loaded = self._newer = False

    def reducers(self) -> dict:
        return self._inner.reducers()

    def traffic(self) -> Traffic:
        """Of training; not of bringing columns together for an evaluation or a checkpoint."""
        inner, own = self._inner.traffic(), self._passes.crossings
        return Traffic(inner.bytes_sent + own.bytes_sent, inner.exposed_s + own.exposed_s, buckets=inner.buckets)

    def close(self) -> None:
        self._inner.close()


def make(kit: ExchangeSettings, make_inner: Callable[[ExchangeSettings], Exchange]) -> Hybrid:
    return Hybrid(kit, make_inner)


def _beginning(arena: Arena, count: int) -> Arena:
    """The first ``count`` spans of an arena, in the same memory."""
    table = tuple((span.name, span.parameter) for span in arena.spans[:count])
    return Arena(
        lambda size, dtype: arena.weights[:size], table, arena.weights.dtype, lambda size, dtype: arena.grads[:size]
    )
