"""Convolutions data-parallel, the fully connected layers at the end model-parallel. Exact where the all-reduce is.

Fully connected layers hold most of the parameters of the networks that have them, and little of the work. So their
weights stay in place, and activations travel:

1.  Each rank computes its convolutions for its own examples.
2.  The features of all examples are gathered on every rank.
3.  Each rank computes its columns of a fully connected layer, num_output/p of them, for all examples; the columns are
    gathered; and so on for each layer. Of the last one each rank takes all columns of its own examples, and the loss.
4.  Backward each rank has one term of the gradient of a layer's input: the terms are summed and scattered, so that each
    rank has its own columns of the gradient, or at the convolutions its own examples.
5.  Each rank has the whole gradient of its columns. It updates them alone, and keeps the optimizer's state of those
    alone. All other gradients go through the all-reduce.

The arena is whole on every rank; :meth:`Hybrid.synchronize` makes its part of the divided layers current.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014.
"""

import math
from collections.abc import Collection
from dataclasses import replace

from ringtrain.errors import ConfigError
from ringtrain.exchange.model_parallel.divided_allreduce import DividedAllReduce
from ringtrain.exchange.model_parallel.hybrid_layers import ColumnShards, divided, trailing
from ringtrain.exchange.model_parallel.layouts import MicrobatchLayouts
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.memory.arena import Arena
from ringtrain.nn.graph import Graph
from ringtrain.nn.layers import Linear
from ringtrain.nn.shapes import element_count
from ringtrain.optim.optimizers import Optimizer


def activations_sent(features: int, units: Collection[int], batch: int, ranks: int, learning: bool = True) -> float:
    """Return the numbers that a rank sends in an iteration for divided layers.

    features: D
    units:    columns of each layer, in order
    learning: whether layers before them learn, so that features have a gradient
    """
    *middle, last = units
    each = (1 + learning) * features + 2 * sum(middle) + 2 * last / ranks
    return (ranks - 1) / ranks * batch * each


def saving(hybrid: float, data: float) -> str:
    """Return what ``--fc hybrid`` saves, for people: the numbers that a rank sends with it, and with ``--fc data``."""
    sent = f"{_count(hybrid)} numbers for them in an iteration, with --fc data {_count(data)}"
    if hybrid < data:
        return f"a rank sends on average {sent}: {1 - hybrid / data:.0%} less"
    return f"a rank sends on average {sent}: at this batch --fc data sends less"


def _count(elements: float) -> str:
    """ "3.44 million", "12,345" """
    return f"{elements / 1e6:.3g} million" if elements >= 1e6 else f"{elements:,.0f}"


class Hybrid(DividedAllReduce):
    """Divides the columns of the fully connected layers among the ranks."""

    def __init__(self, settings: ExchangeSettings):
        super().__init__(settings)
        self._add_square_norm = self._add_columns
        header = f"{self.facts.header} with fc hybrid".strip()
        self.facts = replace(
            self.facts, header=header, state_is_local=False, survives_rank_loss=False, within_passes=True
        )
        self._layouts, self._columns = MicrobatchLayouts(settings), ColumnShards(settings)
        self._norm = 0.0  # of the gradient of this iteration, if it is clipped

    def prepare(self, graph: Graph) -> Graph:
        """Raises ConfigError for a network without layers to divide, or with too few columns."""
        first, size = trailing(graph.plan, graph.shapes), self._settings.transport.size
        if first is None:
            raise ConfigError(
                f"--fc hybrid divides the fully connected layers at the end of a model, and {self._settings.model!r} "
                "has none there: leave --fc at data"
            )
        units = {node.name: node.layer.units for node in graph.plan[first:] if isinstance(node.layer, Linear)}
        for name, count in units.items():
            if count < size:
                raise ConfigError(
                    f"--fc hybrid gives each rank columns of every fully connected layer, and {name!r} has {count}, "
                    f"fewer than the {size} ranks: use at most {count}, or leave --fc at data"
                )
        counts = [(_layer(name) in units, element_count(parameter.shape)) for name, parameter in graph.parameters()]
        parameters, learning = sum(count for ours, count in counts if ours), not all(ours for ours, _ in counts)
        self._divided, cost = units.keys(), "one rank has all columns, and sends nothing"
        if size > 1:
            features = graph.shapes[graph.plan[first].inputs[0]][0]
            hybrid = activations_sent(features, units.values(), self._settings.batch, size, learning)
            cost = saving(hybrid, 2 * (size - 1) / size * parameters)
        self._note = f"hybrid: columns of {', '.join(units)} are divided among {size} ranks: {cost}"
        return divided(graph, first, self._layouts, self._columns)

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        ours = [span for span in arena.spans if _layer(span.name) in self._divided]  # they are the last
        self._columns.bind(ours, optimizer)
        self._bind_front(arena, optimizer, len(arena.spans) - len(ours), self._layouts.collectives)
        self.rehearsed = [*self.rehearsed, self._columns.update]
        self.facts = replace(self.facts, notes=[self._note, *self.facts.notes], state_bytes=None)

    def _gather_slot(self, name: str) -> None:
        self._columns.store_slot(name, self._arena.grads)

    def _take_state(self, state: dict) -> None:
        super()._take_state(state)
        self._columns.restore(state)

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._columns.load(self._arena.weights)
        self._layouts.iterate(total)
        super().before(iteration, examples, total)

    def finish(self, iteration: int, lr: float) -> None:
        """Update the columns during the all-reduce, unless they are clipped by the norm that it finds."""
        limit = self._settings.clip_norm
        if limit is None:
            self._columns.apply(lr)
            super().finish(iteration, lr)
            return
        super().finish(iteration, lr)
        if self._norm > limit:
            self._columns.scale(limit / self._norm)
        self._columns.apply(lr)

    def _add_columns(self, squares: float) -> float:
        """Add the square norm of the columns' gradients to the other layers'."""
        squares += self._columns.square_sum()
        self._norm = math.sqrt(squares)
        return squares

    def synchronize(self) -> None:
        super().synchronize()
        self._columns.store(self._arena.weights)


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0]
