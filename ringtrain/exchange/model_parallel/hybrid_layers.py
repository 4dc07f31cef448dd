"""The last fully connected layers of a network, each with this rank's columns alone, for the examples of all ranks.

Every rank computes the layers between them (dropout, ReLU) for all examples and all columns: little work, and the same
numbers everywhere, since random numbers depend only on the example and the element.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringtrain.arrays import Array
from ringtrain.collectives.schedule import bounds
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.model_parallel.layouts import GatheredColumns, GatheredRows, LocalRows, MicrobatchLayouts
from ringtrain.exchange.model_parallel.part_gather import PartGather, own_part, own_state
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Parameter, Shape, Span
from ringtrain.nn import shapes
from ringtrain.nn.base import Layer
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import Node
from ringtrain.nn.layers import Dropout, Flatten, Linear, ReLU
from ringtrain.optim.optimizers import Optimizer


class ColumnShards:
    """This rank's columns of the divided layers, in memory of their own: products need contiguous columns.

    In the arena a weight is [D, K] by rows. This rank's k columns are kept as [D, k], with gradients and optimizer
    state, and are gathered in the arena of every rank for an evaluation or a checkpoint. ``weights`` and ``grads``: by
    layer and short name, once bound.
    """

    def __init__(self, settings: ExchangeSettings):
        self._settings, self._ops, self._sum_over_ranks = settings, settings.ops, SumOverRanks(settings)
        self.weights: dict[str, dict] = {}
        self.grads: dict[str, dict] = {}
        self._loaded = False  # whether the columns have been taken from the arena
        self._newer = False  # whether they are newer than the arena's

    def bind(self, spans: Sequence[Span], optimizer: Optimizer) -> None:
        """Make memory for this rank's columns of ``spans`` of the arena."""
        transport = self._settings.transport

        def columns(parameter: Parameter) -> Parameter:
            edges = bounds(parameter.shape[-1], transport.size)
            return parameter.of_columns(*edges[transport.rank : transport.rank + 2])

        table = tuple((span.name, columns(span.parameter)) for span in spans)
        self._spans, self._arena = spans, Arena(transport.scratch, table, self._ops.dtype)
        arena = self._arena
        for span in arena.spans:
            layer, _, short = span.name.rpartition(".")
            self.weights.setdefault(layer, {})[short] = arena.weight(span)
            self.grads.setdefault(layer, {})[short] = arena.grad(span)
        part_optimizer, pieces = type(optimizer)(arena.spans, optimizer.hyper), everything(arena)
        add = self._sum_over_ranks.add
        self.update = OwnedUpdate(self._ops, arena, part_optimizer, arena.grads, pieces, add_norms=add)
        self._parts = PartGather(self._settings, [(spans, range(transport.size))], arena, is_taker=True)

    # ── updates ───────────────────────────────────────────────────────────────────────────────────────────
    def square_sum(self) -> float:
        """Return the sum of squares of the gradients of all ranks' columns. Collective."""
        grads, trained = self._arena.grads, self.update.trained
        return self._sum_over_ranks(sum(self._ops.square_sum(grads[start:stop]) for start, stop in trained))

    def scale(self, factor: float) -> None:
        for start, stop in self.update.trained:
            self._ops.scale(self._arena.grads[start:stop], factor)

    def apply(self, lr: float) -> None:
        """Update this rank's columns. Norms of parameters are over all ranks' columns."""
        self._newer = True
        self.update.make(lr)

    # ── to and from the arena ─────────────────────────────────────────────────────────────────────────────
    def load(self, weights: Array) -> None:
        """Copy the columns from whole parameters, an array over the arena, unless they have been taken from it."""
        if not self._loaded:
            self._ops.upload(own_part(self._arena, self._spans, self._ops.to_host(weights)), self._arena.weights)
        self._loaded = True

    def store(self, weights: Array) -> None:
        """Gather the columns of all ranks in whole parameters, on every rank, if they have been updated. Collective."""
        if self._newer:
            self._parts.gather(self._arena.weights, weights)
        self._newer = False

    def store_slot(self, name: str, flat: Array) -> None:
        """Gather a slot of the optimizer's state. Collective."""
        self._parts.gather(self.update.slots[name], flat)

    def restore(self, state: dict) -> None:
        """Continue from a whole state in host arrays, with the arena's weights."""
        self.update.take(own_state(self._arena, self._spans, state))
        self._loaded = self._newer = False


BETWEEN = (Dropout, ReLU, Flatten)  # backward each is linear in dy, element by element: terms may be added later


@dataclass(frozen=True)
class GatherBatch(Layer):
    """Gathers the examples of all ranks. Shapes: x [n,D] → [B,D]"""

    layouts: MicrobatchLayouts
    random: bool  # whether later layers draw random numbers

    def shape(self, inputs):
        return shapes.single(self, inputs)

    def repeats(self, ctx):
        return False  # a collective

    def forward(self, ctx, weights, xs):
        (x_nD,) = xs
        layout = self.layouts.begin(x_nD.shape[0])
        if self.random:
            layout.gather_examples(ctx.examples)
        rows = layout.prepared(GatheredRows, self.name, layout.rows, x_nD.shape[1])
        return rows.gather(x_nD), rows

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        return (tape.scatter(dy),)


@dataclass(frozen=True)
class ColumnParallelLinear(Layer):
    """This rank's columns of a fully connected layer. ``edges``: the start of each rank's columns, and the end;
    ``columns``: their memory, if the arena has the whole layer; None: it has this rank's columns alone. ``last``: of
    the divided layers; then each rank takes its own examples back.

    Shapes: x [B,D] → y [B,K], or [n,K] of the last
    """

    whole: Linear
    layouts: MicrobatchLayouts
    edges: tuple[int, ...]
    columns: ColumnShards | None
    last: bool

    def shape(self, inputs):
        return self.whole.shape(inputs)

    def parameters(self, inputs):
        whole = self.whole.parameters(inputs)
        if self.columns is not None:
            return whole
        start, stop = self.edges[self.layouts.rank : self.layouts.rank + 2]
        return tuple(parameter.of_columns(start, stop) for parameter in whole)

    def flops(self, inputs):
        return self.whole.flops(inputs)

    def repeats(self, ctx):
        return False  # a collective

    def forward(self, ctx, weights, xs):
        (x_BD,), part, units = xs, self._own_weights(weights), self.whole.units
        layout, edges = self.layouts.current, self.edges
        kind, rows = (LocalRows, layout.rows) if self.last else (GatheredColumns, layout.total)
        output = layout.prepared(kind, self.name, rows, edges)
        ctx.ops.linear(x_BD, part["weight"], part.get("bias"), output.product, relu=self.whole.relu)
        y = ctx.space.shared(f"{self.name}.y", (layout.local if self.last else layout.total, units))
        output.gather(y)
        return y, (x_BD, output)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x_BD, output = tape
        part = grads if self.columns is None else self.columns.grads[self.name]
        dy_Bk = output.scatter(dy)
        dx_BD = ctx.space.shared(f"{self.name}.dx", x_BD.shape) if wanted[0] else None
        ctx.ops.linear_back(
            x_BD,
            self._own_weights(weights)["weight"],
            output.product,
            dy_Bk,
            part["weight"],
            part.get("bias"),
            dx_BD,
            relu=self.whole.relu,
            accumulate=ctx.accumulate,
        )
        return (dx_BD,)

    def _own_weights(self, weights):
        return weights if self.columns is None else self.columns.weights[self.name]


@dataclass(frozen=True)
class RandomOverGlobalBatch(Layer):
    """A layer that draws random numbers by example, for the examples of all ranks."""

    layer: Layer
    layouts: MicrobatchLayouts

    def shape(self, inputs):
        return self.layer.shape(inputs)

    def repeats(self, ctx):
        return False  # a collective

    def forward(self, ctx, weights, xs):
        examples = self.layouts.current.examples
        y, tape = self.layer.forward(replace(ctx, examples=examples), weights, xs)
        return y, (examples, tape)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        examples, inner = tape
        return self.layer.backward(replace(ctx, examples=examples), weights, grads, dy, inner, wanted)


# ── the graph ─────────────────────────────────────────────────────────────────────────────────────────────────
def trailing(plan: Sequence[Node], known: dict[str, Shape]) -> int | None:
    """Return the index of the first Linear of the layers at the end, which are Linear or of :data:`BETWEEN`, and each
    read only the layer before; None without one. ``known``: the shapes of outputs. A Linear of a sequence is not
    divided, nor is any layer before it."""
    first = None
    for i in reversed(range(len(plan))):
        read_on = i + 1 == len(plan) or plan[i + 1].inputs == (plan[i].name,)
        if not (read_on and isinstance(plan[i].layer, (Linear, *BETWEEN))):
            break
        if isinstance(plan[i].layer, Linear):
            if len(known[plan[i].name]) != 1:
                break
            first = i
    return first


def divided(graph: Graph, first: int, layouts: MicrobatchLayouts, columns: ColumnShards | None) -> Graph:
    """Return the graph with node ``first`` of the plan, and all after it, divided among ranks; ``columns`` as in
    :class:`ColumnParallelLinear`."""
    before, after = graph.plan[:first], graph.plan[first:]
    last = max(i for i, node in enumerate(after) if isinstance(node.layer, Linear))
    random = any(isinstance(node.layer, Dropout) for node in after[:last])
    start = Node(GatherBatch(f"{after[0].name}.examples", layouts, random), after[0].inputs)
    nodes = [_divided(node, i < last, layouts, columns) for i, node in enumerate(after[: last + 1])]
    nodes[0] = replace(nodes[0], inputs=(start.name,))
    nodes = [*before, start, *nodes, *after[last + 1 :]]
    return Graph(nodes, graph.input_shape, fused=False, wants_dx=graph.wants_dx)


def _divided(node: Node, more: bool, layouts: MicrobatchLayouts, columns: ColumnShards | None) -> Node:
    if isinstance(node.layer, Linear):
        edges = tuple(bounds(node.layer.units, layouts.ranks))
        layer = ColumnParallelLinear(node.name, node.layer, layouts, edges, columns, not more, frozen=node.layer.frozen)
        return replace(node, layer=layer)
    if isinstance(node.layer, Dropout):
        return replace(node, layer=RandomOverGlobalBatch(node.name, node.layer, layouts))
    return node
