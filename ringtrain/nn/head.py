"""Changes the classes of a model: the units of its last layer, in the text of its file."""

import copy
import re

import tomli_w

from ringtrain import parsing
from ringtrain.errors import ModelError
from ringtrain.nn import graph_checks, spec
from ringtrain.nn.conv import Conv2D
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.layers import Linear
from ringtrain.nn.spec import ModelSpec

UNITS = {Linear: "units", Conv2D: "channels"}


def head_of(graph: Graph) -> Node | None:
    """Return the last layer with parameters, if the output comes from it alone; or None."""
    nodes, name = {node.name: node for node in graph.nodes}, graph.output
    while name != INPUT:
        node = nodes[name]
        if node.layer.parameters(graph_checks.input_shapes(node, graph.shapes)):
            return node
        if len(node.inputs) != 1:
            return None
        name = node.inputs[0]
    return None


def with_classes(model: ModelSpec, classes: int) -> ModelSpec:
    """Return the model with a last layer, fully connected or a convolution, of ``classes`` outputs. Raises ModelError
    if another layer is the last one with parameters, or if it is of a block."""
    no_head = ModelError(
        f"--classes {classes}: the output of model {model.name!r} is not that of one last Linear or Conv2D layer: "
        "change the model file itself"
    )
    head = head_of(model.graph())
    key = UNITS.get(type(head.layer)) if head else None
    if head is None or key is None:
        raise no_head
    wanted = copy.deepcopy(parsing.parse_toml(model.text))
    entry = next((layer for layer in wanted["layers"] if layer.get("name") == head.name), None)
    if entry is None:
        raise ModelError(
            f"--classes {classes}: the last layer of model {model.name!r}, {head.name!r}, is in a block: give it "
            f"{key} = {classes} in a copy of the model file"
        )
    entry[key] = classes
    # Another number behind the key in the line of the layer, where it has one.
    of_layer = rf'(\bname\s*=\s*"{re.escape(head.name)}"[^\n]*?\b{key}\s*=\s*)\d+'
    text = re.sub(of_layer, rf"\g<1>{classes}", model.text, count=1)
    if parsing.parse_toml(text) != wanted:
        text = tomli_w.dumps(wanted)  # without the comments
    changed = spec.parse_model(text, model.name)
    shape = changed.graph().shapes[changed.graph().output]
    if shape[-1] != classes:
        raise no_head
    return changed
