"""The connections of layers: nodes, and the checks and inferences over them. No arrays."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ringtrain.errors import ModelError, nearest
from ringtrain.nn.base import Layer, Shape

INPUT = "input"  # the name of the images
MOST_NUMBERS = 1 << 48  # of one array: what a process can address


@dataclass(frozen=True, slots=True)
class Node:
    """A layer and the names of its inputs. ``folded`` names the layers that are folded into it, in their order."""

    layer: Layer
    inputs: tuple[str, ...]
    folded: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def last(self) -> str:
        """The name of the layer whose output the node computes."""
        return self.folded[-1] if self.folded else self.name


def check_graph(nodes: tuple[Node, ...]) -> None:
    """Raise ModelError unless names are unique, inputs come before their readers, and every output but the
    last is read."""
    if not nodes:
        raise ModelError("the model has no layers: it wants at least one")
    seen = {INPUT: None}  # in order
    for node in nodes:
        _check_node(node, seen)
        seen[node.name] = None
    read = reader_counts(nodes)
    for node in nodes[:-1]:
        if not read[node.name]:
            raise ModelError(
                f"no layer reads layer {node.name!r}, which is not the last one: name it in the inputs of another "
                "layer, or remove it"
            )


def _check_node(node: Node, seen: Collection[str]) -> None:
    if node.name in seen:
        raise ModelError(f"layer name {node.name!r} is taken: names are unique, and {INPUT!r} names the images")
    for source in node.inputs:
        if source not in seen:
            raise ModelError(
                f"layer {node.name!r} reads {source!r}, but no layer before it has that name; {nearest(source, seen)}"
            )


def reader_counts(nodes: tuple[Node, ...]) -> Counter:
    """Return the number of readers of each output."""
    return Counter(source for node in nodes for source in node.inputs)


def infer_shapes(nodes: tuple[Node, ...], input_shape: Shape) -> dict[str, Shape]:
    """Return the shape of each output, by name. Raises ModelError if shapes do not fit, or exceed any memory."""
    known = {INPUT: tuple(input_shape)}
    _check_size("the input", known[INPUT])
    for node in nodes:
        inputs = input_shapes(node, known)
        known[node.name] = node.layer.shape(inputs)
        _check_size(f"layer {node.name!r}", known[node.name])
        for parameter in node.layer.parameters(inputs):
            _check_size(f"{parameter.name} of layer {node.name!r}", parameter.shape)
    return known


def _check_size(name: str, shape: Shape) -> None:
    if math.prod(shape) > MOST_NUMBERS:
        raise ModelError(
            f"{name} is {'x'.join(map(str, shape))}, more numbers than any memory holds: use smaller sizes"
        )


def unknown_layer(name: str, known: Iterable[str]) -> ModelError:
    return ModelError(f"the model has no layer {name!r}; {nearest(name, known)}")


def input_shapes(node: Node, known: dict[str, Shape]) -> list[Shape]:
    return [known[source] for source in node.inputs]


def gradients_needed(nodes: tuple[Node, ...], known: dict[str, Shape], wanted: Iterable[str] = ()) -> set[str]:
    """Return the outputs whose gradient is needed: those with a trained parameter in or before their layer, and those
    that are ``wanted``."""
    needed = set(wanted)
    for node in nodes:
        parameters = {parameter.name for parameter in node.layer.parameters(input_shapes(node, known))}
        if needed.intersection(node.inputs) or parameters - node.layer.frozen:
            needed.add(node.name)
    return needed
