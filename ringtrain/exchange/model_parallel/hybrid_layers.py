"""The last fully connected layers of a network, each with this rank's columns alone, for the examples of all ranks.

Every rank computes the layers between them (dropout, ReLU) for all examples and all columns: little work, and the same
numbers everywhere, since random numbers depend only on the example and the element.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringtrain.exchange.model_parallel.column_shards import ColumnShards
from ringtrain.exchange.model_parallel.microbatches import MicrobatchLayouts
from ringtrain.nn import shapes
from ringtrain.nn.base import Layer
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import Node
from ringtrain.nn.layers import Dropout, Flatten, Linear, ReLU

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
        rows = layout.all_rows(self.name, x_nD.shape[1])
        return rows.gather(x_nD), rows

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        return (tape.scatter(dy),)


@dataclass(frozen=True)
class ColumnParallelLinear(Layer):
    """This rank's columns of a fully connected layer, with weights of their own in place of the arena's. ``last``: of
    the network; then each rank takes its own examples back.

    Shapes: x [B,D] → y [B,K], or [n,K] of the last
    """

    whole: Linear
    layouts: MicrobatchLayouts
    columns: ColumnShards
    last: bool

    def shape(self, inputs):
        return self.whole.shape(inputs)

    def parameters(self, inputs):
        return self.whole.parameters(inputs)

    def flops(self, inputs):
        return self.whole.flops(inputs)

    def repeats(self, ctx):
        return False  # a collective

    def forward(self, ctx, weights, xs):
        (x_BD,), own, units = xs, self.columns.weights[self.name], self.whole.units
        layout, edges = self.layouts.current, self.columns.edges(units)
        output = layout.own_rows(self.name, edges) if self.last else layout.all_columns(self.name, edges)
        ctx.ops.linear(x_BD, own["weight"], own.get("bias"), output.own, relu=self.whole.relu)
        y = ctx.space(f"{self.name}.y", (layout.own if self.last else layout.total, units))
        output.gather(y)
        return y, (x_BD, output)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        (x_BD, output), own = tape, self.columns.grads[self.name]
        dy_Bk = output.scatter(dy)
        dx_BD = ctx.space(f"{self.name}.dx", x_BD.shape) if wanted[0] else None
        ctx.ops.linear_back(
            x_BD,
            self.columns.weights[self.name]["weight"],
            output.own,
            dy_Bk,
            own["weight"],
            own.get("bias"),
            dx_BD,
            relu=self.whole.relu,
            accumulate=ctx.accumulate,
        )
        return (dx_BD,)


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
def trailing(plan: Sequence[Node]) -> int | None:
    """Return the place of the first Linear of the layers at the end, which are Linear or of :data:`BETWEEN`, and each
    read only the layer before; None without one."""
    first = None
    for i in reversed(range(len(plan))):
        read_on = i + 1 == len(plan) or plan[i + 1].inputs == (plan[i].name,)
        if not (read_on and isinstance(plan[i].layer, (Linear, *BETWEEN))):
            break
        if isinstance(plan[i].layer, Linear):
            first = i
    return first


def divided(graph: Graph, first: int, layouts: MicrobatchLayouts, columns: ColumnShards) -> Graph:
    """Return the graph with node ``first`` of the plan, and all after it, divided among ranks."""
    before, after = graph.plan[:first], graph.plan[first:]
    last = max(i for i, node in enumerate(after) if isinstance(node.layer, Linear))
    random = any(isinstance(node.layer, Dropout) for node in after[:last])
    start = Node(GatherBatch(f"{after[0].name}.examples", layouts, random), after[0].inputs)
    nodes = [_divided(node, i < last, layouts, columns) for i, node in enumerate(after[: last + 1])]
    nodes[0] = replace(nodes[0], inputs=(start.name,))
    return Graph((*before, start, *nodes, *after[last + 1 :]), graph.input_shape, fused=False)


def _divided(node: Node, more: bool, layouts: MicrobatchLayouts, columns: ColumnShards) -> Node:
    if isinstance(node.layer, Linear):
        return replace(node, layer=ColumnParallelLinear(node.name, node.layer, layouts, columns, last=not more))
    if isinstance(node.layer, Dropout):
        return replace(node, layer=RandomOverGlobalBatch(node.name, node.layer, layouts))
    return node
