"""Fusion of each ReLU into the Conv2D, Linear, BatchNorm or Add before it, if no other layer reads that one's output.

    conv1 ─► relu1 ─► pool1        becomes        conv1 (relu) ─► pool1

This saves one pass over memory, and one array. Names keep their meaning for the user: the graph still lists
both layers, features of ``relu1`` are the fused layer's output, and features of ``conv1`` are computed
without the ReLU.
"""

from dataclasses import replace

from ringtrain.nn.base import Fusable
from ringtrain.nn.graph_checks import Node, reader_counts
from ringtrain.nn.layers import ReLU


def fold_relus(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the nodes with each foldable ReLU folded into the layer before it."""
    into = foldable_relus(nodes)
    relus = {producer: relu for relu, producer in into.items()}
    return tuple(_rewire(node, into, relus) for node in nodes if node.name not in into)


def foldable_relus(nodes: tuple[Node, ...]) -> dict[str, str]:
    """Return the name of each foldable ReLU → the name of the layer that absorbs it."""
    layers, read = {node.name: node.layer for node in nodes}, reader_counts(nodes)
    return {
        node.name: node.inputs[0]
        for node in nodes
        if isinstance(node.layer, ReLU)
        and isinstance(layers.get(node.inputs[0]), Fusable)
        and read[node.inputs[0]] == 1
    }


def _rewire(node: Node, into: dict[str, str], relus: dict[str, str]) -> Node:
    inputs = tuple(into.get(source, source) for source in node.inputs)
    if node.name in relus and isinstance(node.layer, Fusable):
        return Node(replace(node.layer, relu=True), inputs, relus[node.name])
    return Node(node.layer, inputs)
