"""Frozen parameters: those that training does not change.

A pattern is a name of a layer or of a parameter ("conv1", "fc.bias"), with the wildcards of a shell. A frozen layer
without a trained one before it has no backward. A BatchNorm whose scale and shift are frozen normalises by its running
averages in training too, and keeps them."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ringtrain.errors import ModelError, nearest
from ringtrain.nn import graph_checks
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import Node


def freeze(graph: Graph, patterns: Sequence[str]) -> Graph:
    """Return the network with parameters frozen. Raises ModelError for a pattern that no name matches, and if no
    parameter is left to train."""
    names = [name for name, _ in graph.parameters()]
    layers = {name.rpartition(".")[0] for name in names}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in (*names, *layers)):
            raise ModelError(f"--freeze {pattern}: no layer or parameter has such a name; {nearest(pattern, layers)}")
    frozen = Graph([_frozen(node, graph, patterns) for node in graph.nodes], graph.input_shape)
    if all(parameter.frozen for _, parameter in frozen.parameters()):
        raise ModelError(
            f"--freeze {','.join(patterns)}: that is every parameter, and none is left to train: freeze fewer"
        )
    return frozen


def _frozen(node: Node, graph: Graph, patterns: Sequence[str]) -> Node:
    parameters = node.layer.parameters(graph_checks.input_shapes(node, graph.shapes))
    trained = {p.name for p in parameters if p.role != "statistic"}
    names = {
        name
        for name in trained
        if any(fnmatchcase(node.name, pattern) or fnmatchcase(f"{node.name}.{name}", pattern) for pattern in patterns)
    }
    if names and names == trained:
        names |= {p.name for p in parameters}  # its running averages too
    return replace(node, layer=replace(node.layer, frozen=frozenset(names)))
