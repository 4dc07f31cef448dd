"""Each layer kind, in each case of the table of layers, gives in onnxruntime what it gives here."""

import numpy as np
import pytest
from test_nn_layers import CASES, label

from ringtrain.nn.catalogue import LAYERS
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.layers import Add, Concat, ReLU
from ringtrain.weights.onnx_layers import OPERATORS
from tests.weights.networks import output_here, output_there, random_weights

ALONE = [case for case in CASES if len(case[1]) == 1 and not getattr(case[0], "relu", False)]


def test_every_kind_has_an_operator():
    assert set(LAYERS) <= set(OPERATORS)


@pytest.mark.parametrize("case", ALONE, ids=map(label, ALONE))
def test_a_layer(case):
    layer, (shape,) = case
    graph, random = Graph([Node(layer, (INPUT,))], shape), np.random.default_rng(4)
    weights, x = random_weights(graph), random.standard_normal((3, *shape)).astype(np.float32)
    if type(layer).__name__ == "Embedding":
        x = random.integers(0, layer.entries, (3, *shape)).astype(np.float32)
    expected = output_here(graph, weights, x, "reference")
    np.testing.assert_allclose(output_there(graph, weights, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 5, 4), (9,)])
def test_layers_that_join(shape):
    nodes = [Node(ReLU("r"), (INPUT,)), Node(Add("a"), (INPUT, "r", "r")), Node(Concat("c"), ("a", "r"))]
    graph = Graph(nodes, shape)
    x = np.random.default_rng(5).standard_normal((3, *shape)).astype(np.float32)
    np.testing.assert_allclose(output_there(graph, {}, x), output_here(graph, {}, x, "reference"), rtol=1e-5, atol=1e-6)
