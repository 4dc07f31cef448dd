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
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
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


class HybridState:
    """The state of the inner exchange and of the columns, as if nothing were divided.

    cut: the first element of the divided layers in the arena
    restored: called when a state has been restored
    """

    def __init__(self, settings: ExchangeSettings, inner, columns: ColumnShards, arena: Arena, cut: int, restored):
        self._ops, self._inner, self._columns = settings.ops, inner, columns
        self._arena, self._cut, self._restored = arena, cut, restored

    def state(self) -> dict:
        """Collective. Columns are gathered in the memory of their gradients in the arena, which is not used."""
        inner = self._inner.state()
        step = inner.pop(STEP)
        return {STEP: step, **{name: np.concatenate([flat, self._gathered(name)]) for name, flat in inner.items()}}

    def _gathered(self, name: str) -> np.ndarray:
        self._columns.store_slot(name, self._arena.grads)
        return self._ops.to_host(self._arena.grads[self._cut :])

    def arrays(self):
        """Those of the inner exchange. Columns are compared by the weights, which all ranks gather."""
        return self._inner.arrays()

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
        self._restored()


class Hybrid(Exchange):
    """Divides the columns of the fully connected layers among the ranks; ``make_inner`` makes the exchange of the other
    layers."""

    def __init__(self, settings: ExchangeSettings, make_inner: Callable[[ExchangeSettings], Exchange]):
        self._settings, self._ops, self._transport = settings, settings.ops, settings.transport
        self._limit = settings.config.clip_norm
        self._inner = make_inner(replace(settings, add_external_square_norm=self._add_columns))
        inner = self._inner.facts
        self.facts = replace(
            inner, header=f"{inner.header} {texts.WITH_HYBRID}".strip(), state_is_local=False, within_passes=True
        )
        self._passes, self._columns = MicrobatchLayouts(settings), ColumnShards(settings)
        self._sum_over_ranks = SumOverRanks(settings)
        self._norm = 0.0  # of the gradient of this iteration, where it is clipped
        self._loaded = False  # whether columns have been taken from the arena
        self._newer = False  # whether they are newer than those in the arena

    def prepare(self, graph):
        """Raises ConfigError for a network that has nothing to divide, or not enough."""
        first = trailing(graph.plan)
        if first is None:
            raise ConfigError(texts.HYBRID_NO_LAYERS(model=self._settings.config.model))
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
        inner = self._inner.owned_state
        self.owned_state = HybridState(self._settings, inner, self._columns, arena, self._cut, self._forget)
        self.reducers = self._inner.reducers.with_messages(self._passes.crossings)
        self.ready_points, self.wait_points = self._inner.ready_points, self._inner.wait_points
        parameters = sum(span.count for span in ours)
        cost = HybridCost(
            self._features, [layer.units for layer in self._layers], parameters, learning=bool(rest.spans)
        )
        notes = [self._words(cost), *self._inner.facts.notes]
        self.facts = replace(self.facts, exact=self._inner.facts.exact, notes=notes)

    def _words(self, cost: HybridCost) -> str:
        size, named = self._transport.size, ", ".join(layer.name for layer in self._layers)
        return texts.HYBRID(layers=named, size=size, cost=cost.words(self._settings.config.batch, size))

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

    def _add_columns(self, squares: float) -> float:
        """Add the square norm of the columns' gradients to that of the inner exchange's gradients."""
        squares += self._sum_over_ranks(self._columns.square_sum())
        self._norm = math.sqrt(squares)
        return squares

    def _forget(self) -> None:
        self._loaded = self._newer = False

    def synchronize(self) -> None:
        self._inner.synchronize()
        if self._newer:
            self._columns.store(self._arena.weights)
            self._newer = False


def _beginning(arena: Arena, count: int) -> Arena:
    """The first ``count`` spans of an arena, in the same memory."""
    table = tuple((span.name, span.parameter) for span in arena.spans[:count])
    return Arena(
        lambda size, dtype: arena.weights[:size], table, arena.weights.dtype, lambda size, dtype: arena.grads[:size]
    )
