"""A network cut into parts that follow one another, each a network of its own over the same arena.

A cut is possible where one array alone crosses it: that array is what travels from part to part, and its gradient back.
"""

from dataclasses import replace
from itertools import combinations, pairwise

from ringtrain.nn import graph_checks
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.layers import Linear


def crossing_output(graph: Graph, place: int) -> str | None:
    """The output of the layers before ``place`` of the plan that those from there on read; None unless it is one."""
    before = {INPUT, *(node.name for node in graph.plan[:place])}
    read = {source for node in graph.plan[place:] for source in node.inputs} & before
    return read.pop() if len(read) == 1 else None


def fc_starts(graph: Graph) -> list[int]:
    """The places of the plan where a part of fully connected layers may begin: Linear layers behind which no image is
    computed any more."""
    found = []
    for place in reversed(range(len(graph.plan))):
        node = graph.plan[place]
        if len(graph.shapes[node.name]) != 1:
            break
        if isinstance(node.layer, Linear) and crossing_output(graph, place) is not None:
            found.insert(0, place)
    return found


def subgraph(graph: Graph, start: int, stop: int) -> Graph:
    """Layers ``start:stop`` of the plan, whose input is what crosses at ``start``. Its backward gives the gradient of
    that input, unless it is the images."""
    source = crossing_output(graph, start)
    nodes = [_read_input(node, source) for node in graph.plan[start:stop]]
    return Graph(nodes, graph.shapes[source], fused=False, wants_dx=source != INPUT)


def _read_input(node: Node, source: str) -> Node:
    return replace(node, inputs=tuple(INPUT if name == source else name for name in node.inputs))


def subgraph_flops(graph: Graph, start: int, stop: int) -> int:
    """Multiplications and additions of a forward pass of one example through layers ``start:stop`` of the plan."""
    return sum(node.layer.flops(graph_checks.input_shapes(node, graph.shapes)) for node in graph.plan[start:stop])


def balanced_starts(graph: Graph, starts: list[int], parts: int) -> list[int]:
    """Where ``parts`` parts begin, so that the one that computes most computes least. ``starts``: where parts may
    begin, the first of them where the first part does."""
    end = len(graph.plan)

    def largest(chosen: tuple[int, ...]) -> int:
        edges = (*chosen, end)
        return max(subgraph_flops(graph, a, b) for a, b in pairwise(edges))

    return list(min(((starts[0], *more) for more in combinations(starts[1:], parts - 1)), key=largest))
