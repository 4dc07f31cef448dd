"""Layers of PyTorch with exported weights give the outputs of ringtrain, and the other way round."""

import numpy as np
import pytest

from ringtrain.nn import spec
from ringtrain.nn.catalogue import LAYERS
from ringtrain.weights.export import to_torch
from ringtrain.weights.matching import match, wanted_of_torch
from tests.weights.networks import output_here, random_weights

torch = pytest.importorskip("torch")
nn = torch.nn


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return super().forward(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


class Line(nn.Sequential):
    """Of a sequence [N, L, C], channels first within."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


# kind → (shape of an input, its keys in a model file, the layer of PyTorch)
LAYERS_THERE = {
    "Conv1D": (
        (9, 4), "channels = 6, kernel = 3, pad = 1, groups = 2", lambda: nn.Conv1d(4, 6, 3, padding=1, groups=2)
    ),
    "Conv2D": ((6, 5, 4), "channels = 6, kernel = 3, groups = 2", lambda: nn.Conv2d(4, 6, 3, groups=2)),
    "Conv3D": ((4, 5, 3, 4), "channels = 6, kernel = 2", lambda: nn.Conv3d(4, 6, 2)),
    "ConvTranspose2D": (
        (6, 5, 4), "channels = 3, kernel = 3, stride = 2, pad = 1, output_pad = 1",
        lambda: nn.ConvTranspose2d(4, 3, 3, 2, 1, 1),
    ),
    "Linear": ((9,), "units = 5", lambda: nn.Linear(9, 5)),
    "BatchNorm": ((6, 5, 4), "", lambda: nn.BatchNorm2d(4)),
    "LayerNorm": ((5, 12), "", lambda: nn.LayerNorm(12)),
    "GroupNorm": ((6, 5, 4), "groups = 2", lambda: nn.GroupNorm(2, 4)),
    "Attention": ((5, 12), "heads = 3, causal = true", lambda: SelfAttention(12, 3, batch_first=True)),
}  # fmt: skip
KINDS = sorted(LAYERS_THERE.keys() & LAYERS.keys())


def is_image(shape):
    return len(shape) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer(kind):
    shape, keys, make = LAYERS_THERE[kind]
    more = f", {keys}" if keys else ""
    text = f'input = {{ shape = {list(shape)} }}\nlayers = [{{ name = "a", kind = "{kind}"{more} }}]'
    graph = spec.parse_model(text, "one").graph()
    weights, random = random_weights(graph), np.random.default_rng(8)
    x = random.standard_normal((3, *shape)).astype(np.float32)
    layer = make().eval()
    tensors = {name.removeprefix("a."): torch.from_numpy(v) for name, v in to_torch(graph, weights).items()}
    layer.load_state_dict(tensors, strict=True)
    model = Line(layer) if kind == "Conv1D" else layer
    images = np.moveaxis(x, -1, 1) if is_image(shape) else x
    with torch.no_grad():
        y = model(torch.from_numpy(np.ascontiguousarray(images))).numpy()
    expected = output_here(graph, weights, x, "reference")
    np.testing.assert_allclose(np.moveaxis(y, 1, -1) if is_image(shape) else y, expected, rtol=1e-4, atol=1e-5)
    state = {f"a.{name}": value.numpy() for name, value in layer.state_dict().items()}
    shapes = {name: value.shape for name, value in state.items()}
    loaded = match(graph, wanted_of_torch(graph), shapes, state.__getitem__, "torch").weights
    assert loaded.keys() == weights.keys() and all(np.array_equal(loaded[name], weights[name]) for name in weights)


def test_a_network_that_flattens():
    text = """
input = { shape = [6, 5, 3] }
layers = [
  { name = "conv", kind = "Conv2D", channels = 4, kernel = 3 },
  { name = "norm", kind = "BatchNorm" },
  { name = "flat", kind = "Flatten" },
  { name = "drop", kind = "Dropout" },
  { name = "fc", kind = "Linear", units = 7 },
]"""
    graph = spec.parse_model(text, "net").graph()
    weights = random_weights(graph)
    layers = {"conv": nn.Conv2d(3, 4, 3), "norm": nn.BatchNorm2d(4), "flat": nn.Flatten(), "drop": nn.Dropout()}
    model = nn.Sequential()
    for name, layer in {**layers, "fc": nn.Linear(48, 7)}.items():
        model.add_module(name, layer)
    model.load_state_dict({name: torch.from_numpy(v) for name, v in to_torch(graph, weights).items()}, strict=True)
    x = np.random.default_rng(9).standard_normal((3, 6, 5, 3)).astype(np.float32)
    with torch.no_grad():
        y = model.eval()(torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)))).numpy()
    np.testing.assert_allclose(y, output_here(graph, weights, x, "reference"), rtol=1e-4, atol=1e-5)
