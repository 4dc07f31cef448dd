"""ONNX graphs in onnxruntime give the outputs of ringtrain."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from ringtrain.errors import ModelError, UsageError
from ringtrain.nn import spec
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.layers import ReLU
from ringtrain.weights import onnx_model
from ringtrain.weights.onnx_model import Preparation, make_onnx
from tests.says import says
from tests.weights.networks import NOTHING, output_here, output_there, random_weights

LARGE = ("alexnet", "resnet18_imagenet", "resnet50", "vit_small", "convnext_tiny")
MODELS = [pytest.param(name, marks=pytest.mark.thorough if name in LARGE else ()) for name in sorted(spec.available())]


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_every_bundled_model(name):
    graph, random = spec.load_model(name).graph(), np.random.default_rng(1)
    is_image = len(graph.input_shape) == 3 and graph.input_shape[-1] in (1, 3)
    shape = (2, *graph.input_shape)
    x = (random.uniform(-1, 1, shape) if is_image else random.integers(0, 5, shape)).astype(np.float32)
    weights = random_weights(graph)
    expected = output_here(graph, weights, x)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(output_there(graph, weights, x), expected, rtol=1e-4, atol=1e-4)


def test_values_are_prepared_within_the_graph():
    graph, random = spec.load_model("lenet").graph(), np.random.default_rng(2)
    x = random.integers(0, 256, (3, 28, 28, 1)).astype(np.float32)
    weights, scale = random_weights(graph), np.array([1 / 64])
    for mean in (np.array([101.5]), random.uniform(0, 255, (28, 28, 1))):
        expected = output_here(graph, weights, (x - mean) * scale)
        np.testing.assert_allclose(output_there(graph, weights, x, mean, scale), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "unet"])
def test_outputs_are_in_the_unit_of_the_labels(name):
    graph, random = spec.load_model(name).graph(), np.random.default_rng(2)
    x = random.uniform(-1, 1, (2, *graph.input_shape)).astype(np.float32)
    weights, channels = random_weights(graph), graph.shapes[graph.output][-1]
    mean, std = random.uniform(-9, 9, channels), random.uniform(1, 9, channels)
    expected = output_here(graph, weights, x) * std + mean
    np.testing.assert_allclose(output_there(graph, weights, x, unit=(mean, std)), expected, rtol=1e-4, atol=1e-3)


@dataclass(frozen=True)
class Swirl(ReLU):
    """A layer kind that only a plug-in has."""


def test_a_kind_without_an_operator_is_named():
    graph = Graph([Node(Swirl("odd"), (INPUT,))], (4, 4, 3))
    with pytest.raises(ModelError, match=says("'odd'", "Swirl")):
        make_onnx(graph, {}, Preparation(np.zeros(3), np.ones(3)), NOTHING)


def test_the_file_tells_its_classes_and_weights_that_none_holds_are_refused(monkeypatch):
    graph, about = spec.load_model("digits").graph(), {"classes": json.dumps(["a", "b"])}
    model = make_onnx(graph, random_weights(graph), Preparation(np.zeros(1), np.ones(1)), about)
    assert {prop.key: prop.value for prop in model.metadata_props} == about
    assert [opset.version for opset in model.opset_import] == [17]
    monkeypatch.setattr(onnx_model, "MOST_BYTES", 1000)
    with pytest.raises(UsageError, match=says("ONNX", "export")):
        make_onnx(graph, random_weights(graph), Preparation(np.zeros(1), np.ones(1)), NOTHING)
