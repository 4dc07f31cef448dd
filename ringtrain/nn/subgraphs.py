"""Subgraphs: consecutive parts of a network, each a network of its own over the same arena.

A cut is possible if a single array crosses it: that array travels from part to part, and its gradient back."""

from dataclasses import replace

from ringtrain.nn import graph_checks
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT
from ringtrain.nn.layers import Linear


def crossing_output(graph: Graph, index: int) -> str | None:
    """Return the one output before ``place`` of the plan that later layers read; None if there are several."""
    before = {INPUT, *(node.name for node in graph.plan[:index])}
    read = {source for node in graph.plan[index:] for source in node.inputs} & before
    return read.pop() if len(read) == 1 else None


def fc_starts(graph: Graph) -> list[int]:
    """Return the places of the plan at which a part of fully connected layers may begin: Linear layers with no image
    after them."""
    starts: list[int] = []
    for index in reversed(range(len(graph.plan))):
        node = graph.plan[index]
        if len(graph.shapes[node.name]) != 1:
            break
        if isinstance(node.layer, Linear) and crossing_output(graph, index) is not None:
            starts.insert(0, index)
    return starts


def subgraph(graph: Graph, start: int, stop: int) -> Graph:
    """Return layers ``start:stop`` of the plan, whose input is the array that crosses at ``start``. Its backward gives
    the gradient of that input, unless it is the images."""
    source = crossing_output(graph, start)
    if source is None:
        raise ValueError(f"several outputs cross place {start} of the plan")
    nodes = [
        replace(node, inputs=tuple(INPUT if name == source else name for name in node.inputs))
        for node in graph.plan[start:stop]
    ]
    return Graph(nodes, graph.shapes[source], fused=False, wants_dx=source != INPUT)


def subgraph_flops(graph: Graph, start: int, stop: int) -> int:
    """Return the multiplications and additions of a forward pass of one example through layers ``start:stop`` of the
    plan."""
    return sum(node.layer.flops(graph_checks.input_shapes(node, graph.shapes)) for node in graph.plan[start:stop])
