"""Fusion of each ReLU into the Conv2D, Linear, BatchNorm or Add before it, and of the sum of a residual block into the
BatchNorm before it, if no other layer reads that one's output.

    conv1 ─► relu1 ─► pool1                       becomes        conv1 (relu) ─► pool1
    norm2 ─► sum ─► relu2 ─► conv3                becomes        norm2 (sum, relu) ─► conv3
    input ───┘                                                   input ┘

Then a Conv2D that a BatchNorm alone reads gets its ghost batches; a BatchNorm that a Conv2D alone reads is deferred.

This saves a pass over memory each, and an array. Names keep their meaning for the user: the graph still lists
all layers, features of ``relu1`` are the fused layer's output, and features of ``conv1`` are computed
without the ReLU."""

from dataclasses import replace

from ringtrain.nn.base import Fusable
from ringtrain.nn.conv import Conv2D
from ringtrain.nn.graph_checks import Node, reader_counts
from ringtrain.nn.layers import Add, ReLU
from ringtrain.nn.norm import BatchNorm


def fold_layers(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the nodes with each foldable ReLU and then each foldable sum folded into a layer before it."""
    nodes = _folded(nodes, foldable_relus(nodes))
    return neighboured(_folded(nodes, foldable_sums(nodes)))


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


def foldable_sums(nodes: tuple[Node, ...]) -> dict[str, str]:
    """Return the name of each foldable sum of two inputs → the name of the BatchNorm that absorbs it: the later input,
    so that the other is there before it, and no layer changes its place."""
    layers, read = {node.name: node.layer for node in nodes}, reader_counts(nodes)
    positions, absorbers = {name: position for position, name in enumerate(layers)}, {}
    for node in nodes:
        if isinstance(node.layer, Add) and len(node.inputs) == 2:
            later = max(node.inputs, key=lambda source: positions.get(source, -1))
            layer = layers.get(later)
            if isinstance(layer, BatchNorm) and not layer.relu and read[later] == 1:
                absorbers[node.name] = later
    return absorbers


def neighboured(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the nodes, in which convolutions and the normalisations beside them know one another."""
    read = reader_counts(nodes)
    layers = {node.name: node.layer for node in nodes}
    for node in nodes:
        layer, first = node.layer, node.inputs[0]
        before = layers.get(first)
        if read[first] != 1 or before is None:
            continue
        if isinstance(layer, BatchNorm) and isinstance(before, Conv2D) and before.groups == 1 and not layer.is_fixed:
            layers[first] = replace(before, ghost=layer.ghost)
        if isinstance(layer, Conv2D) and isinstance(before, BatchNorm) and layer.groups == 1 and not before.sums:
            layers[first] = replace(before, deferred=True)
    return tuple(Node(layers[node.name], node.inputs, node.folded) for node in nodes)


def as_far_as(node: Node, name: str) -> Node:
    """Return the node with the layers after ``name`` left out, which is in it: as the model file has them."""
    if isinstance(node.layer, BatchNorm):
        node = Node(replace(node.layer, deferred=False), node.inputs, node.folded)
    kept = (node.name, *node.folded).index(name)
    if kept == len(node.folded) or not isinstance(node.layer, Fusable):
        return node
    if kept == 0 and isinstance(node.layer, BatchNorm):
        return Node(replace(node.layer, relu=False, sums=False), node.inputs[:1])
    return Node(replace(node.layer, relu=False), node.inputs, node.folded[:kept])  # a ReLU is the last


def _folded(nodes: tuple[Node, ...], into: dict[str, str]) -> tuple[Node, ...]:
    absorbed = {into[node.name]: node for node in nodes if node.name in into}
    return tuple(_rewire(node, into, absorbed.get(node.name)) for node in nodes if node.name not in into)


def _rewire(node: Node, into: dict[str, str], absorbed: Node | None) -> Node:
    layer, inputs, folded = node.layer, node.inputs, node.folded
    if absorbed is not None:
        folded += (absorbed.name, *absorbed.folded)
        if isinstance(absorbed.layer, Add) and isinstance(layer, BatchNorm):
            layer = replace(layer, sums=True, relu=absorbed.layer.relu)
            inputs += tuple(source for source in absorbed.inputs if source != node.name)
        elif isinstance(layer, Fusable):
            layer = replace(layer, relu=True)
    return Node(layer, tuple(into.get(source, source) for source in inputs), folded)
