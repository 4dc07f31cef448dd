"""The parameters of a network as PyTorch has them: names, and axes in another order.

    Conv1D, 2D, 3D    [..., C/groups, K]    [K, C/groups, ...]
    ConvTranspose2D   [C, R, S, K]          [C, K, R, S]
    Linear            [in, out]             [out, in]
    Attention         [D, 3D], [D, D]       transposed; MultiheadAttention's names
    BatchNorm         gamma, beta, mean, variance     weight, bias, running_mean, running_var

The elements of a flattened image are in the order of height, width and channel in ringtrain, and of channel, height and
width in PyTorch: so are the inputs of the next Linear. A sequence is [L, D] in both, but a Conv1D's is [C, L] in
PyTorch. Layers of other kinds keep names and layouts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.nn import graph_checks
from ringtrain.nn.base import Parameter, Shape
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node

NORMALISED = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}
NAMES = {
    **dict.fromkeys(("BatchNorm", "LayerNorm", "GroupNorm"), NORMALISED),
    "Attention": {
        "qkv_weight": "in_proj_weight",
        "qkv_bias": "in_proj_bias",
        "out_weight": "out_proj.weight",
        "out_bias": "out_proj.bias",
    },
}
AXES = {  # of ringtrain's weight, in PyTorch's order
    ("Conv1D", "weight"): (2, 1, 0),
    ("Conv2D", "weight"): (3, 2, 0, 1),
    ("Conv3D", "weight"): (4, 3, 0, 1, 2),
    ("ConvTranspose2D", "weight"): (0, 3, 1, 2),
    ("Linear", "weight"): (1, 0),
    ("Attention", "qkv_weight"): (1, 0),
    ("Attention", "out_weight"): (1, 0),
}
ELEMENTWISE = ("ReLU", "Sigmoid", "Tanh", "GELU", "SiLU", "Dropout", "Add")
CHANNELS_FIRST = ("Conv1D", "BatchNorm", "GroupNorm", "MaxPool", "AvgPool")  # of a sequence in PyTorch
ALONG_FEATURES = ("BatchNorm", "LayerNorm")  # parameters in the order of the features

Order = np.ndarray | None  # of flattened elements: at PyTorch's index, ringtrain's index; None: the same


@dataclass(frozen=True, slots=True)
class TorchParameter:
    """One parameter in ringtrain and in PyTorch."""

    name: str  # in ringtrain, such as "fc.weight"
    parameter: Parameter
    layer: str
    suffix: str  # in PyTorch, behind the layer's name: "weight"
    axes: tuple[int, ...]  # ringtrain's, in PyTorch's order
    order: Order  # of ringtrain's first axis, where it is flattened elements

    @property
    def shape(self) -> Shape:
        return tuple(self.parameter.shape[axis] for axis in self.axes)

    def to_torch(self, values: np.ndarray) -> np.ndarray:
        """Return ringtrain's values in PyTorch's layout."""
        ordered = values if self.order is None else values[self.order]
        return np.ascontiguousarray(ordered.transpose(self.axes))

    def from_torch(self, values: np.ndarray) -> np.ndarray:
        """Return PyTorch's values in ringtrain's layout."""
        back = values.transpose(np.argsort(self.axes))
        return np.ascontiguousarray(back if self.order is None else back[np.argsort(self.order)])


def torch_parameters(graph: Graph) -> tuple[TorchParameter, ...]:
    """Return the parameters of a network, in its order."""
    orders = _orders(graph)
    return tuple(
        _torch(node, parameter, orders)
        for node in graph.nodes
        for parameter in node.layer.parameters(graph_checks.input_shapes(node, graph.shapes))
    )


def _torch(node: Node, parameter: Parameter, orders: dict[str, Order]) -> TorchParameter:
    kind, rank = type(node.layer).__name__, len(parameter.shape)
    ordered = (kind == "Linear" and parameter.name == "weight") or kind in ALONG_FEATURES
    return TorchParameter(
        name=f"{node.name}.{parameter.name}",
        parameter=parameter,
        layer=node.name,
        suffix=NAMES.get(kind, {}).get(parameter.name, parameter.name),
        axes=AXES.get((kind, parameter.name), tuple(range(rank))),
        order=orders[node.inputs[0]] if ordered else None,
    )


def _orders(graph: Graph) -> dict[str, Order]:
    """The order of the elements of each output."""
    order_by_node: dict[str, Order] = {INPUT: None}
    first = {INPUT: len(graph.input_shape) > 2}  # whether channels come first in PyTorch
    for node in graph.nodes:
        kind, source = type(node.layer).__name__, node.inputs[0]
        shapes = graph_checks.input_shapes(node, graph.shapes)
        inherits = kind in ELEMENTWISE or kind == "Concat"
        first[node.name] = len(graph.shapes[node.name]) > 2 or kind in CHANNELS_FIRST or (inherits and first[source])
        order_by_node[node.name] = _order(kind, shapes, [order_by_node[each] for each in node.inputs], first[source])
    return order_by_node


def _order(kind: str, shapes: Sequence[Shape], orders: Sequence[Order], channels_first: bool) -> Order:
    if kind == "Flatten":
        if len(shapes[0]) < 2:
            return orders[0]
        if not channels_first:
            return None
        numbers = np.arange(int(np.prod(shapes[0]))).reshape(shapes[0])
        return np.moveaxis(numbers, -1, 0).reshape(-1)
    if kind == "Concat" and len(shapes[0]) == 1 and any(order is not None for order in orders):
        starts = np.cumsum([0, *(shape[0] for shape in shapes[:-1])])
        parts = [np.arange(shape[0]) if order is None else order for shape, order in zip(shapes, orders, strict=True)]
        return np.concatenate([start + part for start, part in zip(starts, parts, strict=True)])
    return orders[0] if kind in ELEMENTWISE or kind in ALONG_FEATURES else None
