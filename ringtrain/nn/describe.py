"""The cost of a network, layer by layer: parameters, arithmetic, memory, bytes to exchange."""

from dataclasses import dataclass

from ringtrain.nn import graph_checks
from ringtrain.nn.base import Shape
from ringtrain.nn.graph_checks import Node
from ringtrain.nn.layers import Flatten
from ringtrain.nn.shapes import element_count

ITEM_BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class LayerRow:
    """The cost of a layer. kind: with "(in conv1)" if it is folded into that layer.

    parameters:       trained numbers; running statistics are not counted
    flops:            multiplications and additions of a forward pass of one example
    activation_bytes: the output of a batch; 0 if the layer has no array of its own
    gradient_bytes:   exchanged bytes: gradients, and shares of running statistics"""

    layer: str
    kind: str
    shape: Shape
    parameters: int
    flops: int
    activation_bytes: int
    gradient_bytes: int


def row(node: Node, shapes: dict, folded_into: str | None, batch: int, item_bytes: int) -> LayerRow:
    layer, inputs, shape = node.layer, graph_checks.input_shapes(node, shapes), shapes[node.name]
    parameters = layer.parameters(inputs)
    trained = sum(element_count(p.shape) for p in parameters if p.role != "statistic")
    moved = sum(element_count(p.shape) for p in parameters)
    kind = type(layer).__name__ + (f" (in {folded_into})" if folded_into else "")
    activation_bytes = 0 if folded_into or isinstance(layer, Flatten) else batch * element_count(shape) * item_bytes
    return LayerRow(node.name, kind, shape, trained, layer.flops(inputs), activation_bytes, moved * item_bytes)


def total(rows: list[LayerRow]) -> LayerRow:
    """Return the sums of all rows, under the name "total"; its shape is the output's."""
    sums = [sum(getattr(row, key) for row in rows) for key in LayerRow.__slots__[3:]]
    return LayerRow("total", "", rows[-1].shape, *sums)
