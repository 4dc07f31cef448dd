"""A network as an ONNX graph, from values as they are stored to the last layer's output, without a softmax.

    images   float32 [N,C,H,W] (a sequence [N,L,C] or [N,L], a volume [N,C,D,H,W]): values as in the data, 0 to 255
    output   float32 of the last layer; an image [N,C,H,W]

Subtracting the mean and scaling is part of the graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ringtrain.errors import ModelError, UsageError, nearest
from ringtrain.nn import graph_checks
from ringtrain.nn.base import Shape
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.spec import Unit
from ringtrain.weights.onnx_layers import OPERATORS, Operators
from ringtrain.weights.tensor_file import NO_PACKAGE

SUFFIX = ".onnx"
OPERATOR_SET, IR_VERSION = 17, 8
IMAGES, OUTPUT, EXAMPLES = "images", "output", "N"
MOST_BYTES = (1 << 31) - 1  # of a protobuf message


@dataclass(frozen=True, slots=True)
class Preparation:
    """(x - mean) · scale. Shapes: mean [C] or [H,W,C], scale [C]; zeros and ones change nothing"""

    mean: np.ndarray
    scale: np.ndarray


def make_onnx(graph: Graph, weights: Mapping, prepared: Preparation, about: Mapping, unit: Unit | None = None):
    """Return the checked ONNX model of a network, whose output is in the units of the labels. Raises ModelError for a
    kind of layer without an operator, UsageError without the package onnx."""
    check_kinds(graph)
    nbytes = sum(array.size * 4 for array in weights.values())
    if nbytes > MOST_BYTES:
        raise UsageError(
            f"the weights take {nbytes:,} bytes, and an ONNX file holds {MOST_BYTES:,} at most: export to .safetensors"
        )
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError:
        raise UsageError(NO_PACKAGE.format(name="onnx")) from None
    operators = Operators(helper, numpy_helper.from_array)
    names = {INPUT: _prepare(operators, prepared, graph.input_shape)}
    for node in graph.nodes:
        operators.begin(node.name)
        names[node.name] = _layer(operators, node, graph, weights, names)
    operators.begin(OUTPUT)
    y, shape = names[graph.output], graph.shapes[graph.output]
    if unit is not None:
        y = operators.add("Mul", y, operators.constant(_spread(unit[1], shape), "std"))
        y = operators.add("Add", y, operators.constant(_spread(unit[0], shape), "mean"))
    operators.nodes.append(helper.make_node("Identity", [y], [OUTPUT], name=OUTPUT))
    kind = onnx.TensorProto.FLOAT
    onnx_graph = helper.make_graph(
        operators.nodes,
        "ringtrain",
        [helper.make_tensor_value_info(IMAGES, kind, [EXAMPLES, *onnx_shape(graph.input_shape)])],
        [helper.make_tensor_value_info(OUTPUT, kind, [EXAMPLES, *onnx_shape(graph.shapes[graph.output])])],
        operators.constants,
    )
    model = helper.make_model(
        onnx_graph,
        opset_imports=[helper.make_opsetid("", OPERATOR_SET)],
        producer_name="ringtrain",
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model, full_check=True)
    return model


def check_kinds(graph: Graph) -> None:
    """Raise ModelError for a kind of layer without an ONNX operator."""
    for node in graph.nodes:
        kind = type(node.layer).__name__
        if kind not in OPERATORS:
            raise ModelError(
                f"layer {node.name!r}: there is no ONNX operator for layer kind {kind} ({nearest(kind, OPERATORS)}): "
                "export to .safetensors"
            )


def onnx_shape(shape: Shape) -> Shape:
    """Return the shape of one example in an ONNX graph."""
    return (shape[-1], *shape[:-1]) if len(shape) > 2 else tuple(shape)


def _prepare(operators: Operators, prepared: Preparation, shape: Shape) -> str:
    operators.begin(INPUT)
    x = IMAGES
    if prepared.mean.any():
        x = operators.add("Sub", x, operators.constant(_spread(prepared.mean, shape), "mean"))
    if (prepared.scale != 1).any():
        x = operators.add("Mul", x, operators.constant(_spread(prepared.scale, shape), "scale"))
    return x


def _spread(values: np.ndarray, shape: Shape) -> np.ndarray:
    """Values of each channel, or of each element, in the order of there."""
    if len(shape) < 3:
        return values
    return np.moveaxis(values, -1, 0) if values.ndim == len(shape) else values.reshape(-1, *[1] * (len(shape) - 1))


def _layer(operators: Operators, node: Node, graph: Graph, weights: Mapping, names: Mapping[str, str]) -> str:
    shapes = graph_checks.input_shapes(node, graph.shapes)
    layer_weights = {p.name: np.asarray(weights[f"{node.name}.{p.name}"]) for p in node.layer.parameters(shapes)}
    return OPERATORS[type(node.layer).__name__](
        operators, node.layer, [names[source] for source in node.inputs], shapes, layer_weights
    )
