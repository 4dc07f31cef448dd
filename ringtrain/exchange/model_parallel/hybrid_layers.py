"""The trailing fully connected layers of a network, each with this rank's columns alone, for the examples of all ranks.

What lies between them (dropout, ReLU) is computed on every rank for all examples and all columns: little work, and the
same numbers everywhere, as random ones hang on the example and the element alone.
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
    """The examples of all ranks, from each its own. Shapes: x [n,D] → [B,D]"""

    passes: MicrobatchLayouts
    random: bool  # whether random numbers are drawn behind it

    def shape(self, inputs):
        return shapes.single(self, inputs)

    def repeats(self, ctx):
        return False  # ranks meet in it

    def forward(self, ctx, weights, xs):
        (x_nD,) = xs
        division = self.passes.begin(x_nD.shape[0])
        if self.random:
            division.gather_examples(ctx.examples)
        crossing = division.all_rows(self.name, x_nD.shape[1])
        return crossing.joined(x_nD), crossing

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        return (tape.parted(dy),)


@dataclass(frozen=True)
class ColumnParallelLinear(Layer):
    """This rank's columns of a fully connected layer. Its weights lie in the arena as ever, and are none of its
    business: it has its own, of those columns. ``last``: of the network; then each rank takes its own examples back.

    Shapes: x [B,D] → y [B,K], or [n,K] of the last
    """

    whole: Linear
    passes: MicrobatchLayouts
    columns: ColumnShards
    last: bool

    def shape(self, inputs):
        return self.whole.shape(inputs)

    def parameters(self, inputs):
        return self.whole.parameters(inputs)

    def flops(self, inputs):
        return self.whole.flops(inputs)

    def repeats(self, ctx):
        return False  # ranks meet in it

    def forward(self, ctx, weights, xs):
        (x_BD,), own, units = xs, self.columns.weights[self.name], self.whole.units
        division, edges = self.passes.current, self.columns.edges(units)
        crossing = (division.own_rows if self.last else division.all_columns)(self.name, edges)
        ctx.ops.linear(x_BD, own["weight"], own.get("bias"), crossing.own, relu=self.whole.relu)
        y = ctx.space(f"{self.name}.y", (division.own if self.last else division.total, units))
        crossing.joined(y)
        return y, (x_BD, crossing)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        (x_BD, crossing), own = tape, self.columns.grads[self.name]
        dy_Bk = crossing.parted(dy)
        dx_BD = ctx.space(f"{self.name}.dx", x_BD.shape) if wanted[0] else None
        ctx.ops.linear_back(
            x_BD,
            self.columns.weights[self.name]["weight"],
            crossing.own,
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
    """A layer that draws random numbers by example, of those of all ranks."""

    layer: Layer
    passes: MicrobatchLayouts

    def shape(self, inputs):
        return self.layer.shape(inputs)

    def repeats(self, ctx):
        return False  # ranks meet in it

    def forward(self, ctx, weights, xs):
        examples = self.passes.current.examples
        y, tape = self.layer.forward(replace(ctx, examples=examples), weights, xs)
        return y, (examples, tape)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        examples, inner = tape
        return self.layer.backward(replace(ctx, examples=examples), weights, grads, dy, inner, wanted)


# ── the graph ─────────────────────────────────────────────────────────────────────────────────────────────────
def trailing(plan: Sequence[Node]) -> int | None:
    """Where the fully connected part begins: the first Linear of those layers at the end that each read the one before
    alone, and are Linear or what may stand between. None where there is none."""
    first = None
    for i in reversed(range(len(plan))):
        read_on = i + 1 == len(plan) or plan[i + 1].inputs == (plan[i].name,)
        if not (read_on and isinstance(plan[i].layer, (Linear, *BETWEEN))):
            break
        if isinstance(plan[i].layer, Linear):
            first = i
    return first


def divided(graph: Graph, first: int, passes: MicrobatchLayouts, columns: ColumnShards) -> Graph:
    """The graph with node ``first`` of the plan, and all after it, as above."""
    before, after = graph.plan[:first], graph.plan[first:]
    last = max(i for i, node in enumerate(after) if isinstance(node.layer, Linear))
    random = any(isinstance(node.layer, Dropout) for node in after[:last])
    start = Node(GatherBatch(f"{after[0].name}.examples", passes, random), after[0].inputs)
    nodes = [_divided(node, i < last, passes, columns) for i, node in enumerate(after[: last + 1])]
    nodes[0] = replace(nodes[0], inputs=(start.name,))
    return Graph((*before, start, *nodes, *after[last + 1 :]), graph.input_shape, fused=False)


def _divided(node: Node, more: bool, passes: MicrobatchLayouts, columns: ColumnShards) -> Node:
    if isinstance(node.layer, Linear):
        return replace(node, layer=ColumnParallelLinear(node.name, node.layer, passes, columns, last=not more))
    if isinstance(node.layer, Dropout):
        return replace(node, layer=RandomOverGlobalBatch(node.name, node.layer, passes))
    return node
