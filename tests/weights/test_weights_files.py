"""safetensors files: names, layouts, what matches, and files that are wrong."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy

from ringtrain.errors import ModelError, UsageError
from ringtrain.nn import spec
from ringtrain.nn.freeze import freeze
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.head import with_classes
from ringtrain.nn.layers import Concat, Flatten, Linear, ReLU
from ringtrain.nn.norm import BatchNorm
from ringtrain.weights.export import to_torch
from ringtrain.weights.layouts import torch_parameters
from ringtrain.weights.matching import read_weights, wanted_of_torch
from ringtrain.weights.names import TORCHVISION, torchvision_names
from ringtrain.weights.tensor_file import TensorFile, write_tensors
from tests.says import says
from tests.weights.networks import random_weights

NET = """
input = { shape = [6, 6, 2] }
layers = [
  { name = "conv", kind = "Conv2D", channels = 4, kernel = 3, groups = 2 },
  { name = "norm", kind = "BatchNorm" },
  { name = "flat", kind = "Flatten" },
  { name = "relu", kind = "ReLU" },
  { name = "fc", kind = "Linear", units = 5 },
]
"""


@pytest.fixture
def net():
    return spec.parse_model(NET, "net")


@pytest.fixture
def saved(tmp_path, net):
    graph = net.graph()
    weights = random_weights(graph)
    path = tmp_path / "w.safetensors"
    write_tensors(path, to_torch(graph, weights, 7), {"a": "b"})
    return path, weights


def changed(path, **tensors):
    """The file with other tensors; None removes one."""
    merged = {**safetensors.numpy.load_file(path), **tensors}
    safetensors.numpy.save_file({name: value for name, value in merged.items() if value is not None}, path)
    return str(path)


def raw(path, header, data=b""):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + data)
    return str(path)


# ── names and layouts ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_names_and_shapes_are_pytorchs_and_a_file_comes_back_bit_for_bit(saved, net):
    path, weights = saved
    shapes = {name: array.shape for name, array in safetensors.numpy.load_file(path).items()}
    assert shapes == {
        "conv.weight": (4, 1, 3, 3),
        "conv.bias": (4,),
        **{f"norm.{name}": (4,) for name in ("weight", "bias", "running_mean", "running_var")},
        "norm.num_batches_tracked": (),
        "fc.weight": (5, 64),
        "fc.bias": (5,),
    }
    match = read_weights(str(path), net.graph())
    assert match.words() == says(8, "of", "matched")
    assert weights.keys() == match.weights.keys()
    assert all(np.array_equal(weights[name], match.weights[name]) for name in weights)


def test_a_product_behind_a_flattened_image_is_the_same_in_the_order_of_there():
    nodes = [
        Node(Flatten("a"), (INPUT,)),
        Node(BatchNorm("n"), ("a",)),
        Node(ReLU("r"), ("n",)),
        Node(Concat("c"), ("r", "a")),
        Node(Linear("fc", 4), ("c",)),
    ]
    graph = Graph(nodes, (2, 3, 5))
    parameters, random = {each.name: each for each in torch_parameters(graph)}, np.random.default_rng(1)
    x = random.standard_normal((2, 3, 5))
    ours, torchs = x.reshape(-1), np.moveaxis(x, -1, 0).reshape(-1)
    weight, gamma = random.standard_normal((60, 4)), random.standard_normal(30)
    y = np.concatenate([ours * gamma, ours]) @ weight
    moved = parameters["n.gamma"].to_torch(gamma)
    product = parameters["fc.weight"].to_torch(weight) @ np.concatenate([torchs * moved, torchs])
    np.testing.assert_allclose(product, y)
    assert not np.array_equal(moved, gamma)
    assert np.array_equal(parameters["fc.weight"].from_torch(parameters["fc.weight"].to_torch(weight)), weight)


@pytest.mark.parametrize("name", ["resnet18", "resnet18_imagenet", "resnet50", "alexnet", "resnet20"])
def test_bundled_models_have_torchvisions_names_and_others_their_own(name):
    layers = {each.layer for each in torch_parameters(spec.load_model(name).graph())}
    names = torchvision_names(layers)
    assert names == TORCHVISION.get(name.removesuffix("_imagenet"), {})
    assert len(set(names.values())) == len(layers) or not names


TIMM_NET = """
input = { shape = [4, 4, 3] }
layers = [
  { name = "conv_dw", kind = "Conv2D", channels = 6, groups = 3, kernel = 3 },
  { name = "gamma", kind = "Conv2D", channels = 6, groups = 6, kernel = 1, bias = false },
  { name = "mlp.fc1", kind = "Conv2D", channels = 4, kernel = 1 },
  { name = "cls_token", kind = "ClassToken" },
  { name = "pos_embed", kind = "PositionEmbedding" },
  { name = "blocks.0.attn", kind = "Attention", heads = 2 },
  { name = "token", kind = "FirstToken" },
  { name = "head", kind = "Linear", units = 2 },
]
"""


def test_layers_with_timms_names_have_its_parameters_and_come_back(tmp_path):
    graph = spec.parse_model(TIMM_NET, "net").graph()
    weights, path = random_weights(graph), tmp_path / "w.safetensors"
    write_tensors(path, to_torch(graph, weights), {})
    shapes = TensorFile(path).shapes
    expected = {"gamma": (6,), "mlp.fc1.weight": (4, 6), "cls_token": (1, 1, 4), "pos_embed": (1, 5, 4)}
    expected |= {"conv_dw.weight": (6, 1, 3, 3), "mlp.fc1.bias": (4,), "blocks.0.attn.qkv.weight": (12, 4)}
    expected |= {"blocks.0.attn.qkv.bias": (12,), "blocks.0.attn.proj.weight": (4, 4), "head.weight": (2, 4)}
    assert shapes == expected | {"conv_dw.bias": (6,), "blocks.0.attn.proj.bias": (4,), "head.bias": (2,)}
    match = read_weights(str(path), graph)
    assert len(match.weights) == len(weights)
    assert all(np.array_equal(weights[name], values) for name, values in match.weights.items())


@pytest.mark.parametrize(
    ("ours", "others"),
    [
        ("conv,norm,stage1.*", "conv1,bn1,layer1.*"),
        ("conv,norm,stage1.*", "conv1,bn1,layer1"),
        ("stage2.1.short,fc.bias", "layer2.0.downsample.0,fc.bias"),
        ("norm.gamma", "bn1.weight"),
    ],
)
def test_a_file_s_names_freeze_what_names_here_do(ours, others):
    graph = spec.load_model("resnet18").graph()
    names = {each.name: each.names for each in wanted_of_torch(graph)}
    frozen = [
        {name for name, p in freeze(graph, patterns.split(","), names).parameters() if p.frozen}
        for patterns in (ours, others)
    ]
    assert frozen[0] == frozen[1] and frozen[0]
    with pytest.raises(ModelError, match=says("--freeze", "layer9.*", "layer4.1")) as error:
        freeze(graph, ["fc", "layer9.*"], names)
    assert len(str(error.value)) < 300  # not all names


# ── matching ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_fits_is_taken_and_the_rest_is_told_or_refused(saved, net, tmp_path):
    path = changed(saved[0], extra=np.zeros(3, np.float32))
    match = read_weights(path, with_classes(net, 3).graph())
    new = "fc.weight (3x64, there 5x64), fc.bias (3, there 5)"
    assert match.words() == f"6 of 8 matched; new: {new}; not used: extra"
    match = read_weights(changed(saved[0], **{"conv.bias": None}), net.graph())
    assert match.new == ("conv.bias",) and len(match.weights) == 7
    path = changed(saved[0], **{"conv.bias": np.zeros(9, np.float32)})
    with pytest.raises(UsageError, match=says("--init", "--model", "conv.bias is 4, there 9")):
        read_weights(path, net.graph())
    safetensors.numpy.save_file({}, tmp_path / "o.safetensors")
    with pytest.raises(UsageError, match="none of its 0 names"):
        read_weights(str(tmp_path / "o.safetensors"), net.graph())
    safetensors.numpy.save_file({"encoder.conv.weight": np.zeros(2), "z": np.zeros(2)}, tmp_path / "o.safetensors")
    with pytest.raises(UsageError, match=r"such as 'conv.weight' \(nearest there: encoder.conv.weight, z\)"):
        read_weights(str(tmp_path / "o.safetensors"), net.graph())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "backbone."])
def test_a_prefix_of_all_names_is_left_out_and_told(saved, net, prefix):
    path, weights = saved
    tensors = {f"{prefix}{name}": values for name, values in safetensors.numpy.load_file(path).items()}
    safetensors.numpy.save_file(tensors, path)
    match = read_weights(str(path), net.graph())
    assert match.words() == says(8, "of", "matched", repr(prefix)) and match.weights.keys() == weights.keys()
    with pytest.raises(UsageError, match=says(f"{prefix}conv.weight")):  # not all names have it
        read_weights(changed(path, other=np.zeros(1)), net.graph())


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_types_of_weights(saved, net, dtype):
    path, _ = saved
    values = safetensors.numpy.load_file(path)["fc.bias"]
    if dtype == "bfloat16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        raw(path, {"fc.bias": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 10]}}, bits.tobytes())
        expected = (bits.astype(np.uint32) << 16).view(np.float32)
    else:
        expected = changed(path, **{"fc.bias": values.astype(dtype)}) and values.astype(dtype)
    assert np.array_equal(read_weights(str(path), net.graph()).weights["fc.bias"], expected)


# ── files that are wrong ──────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("values", "words"), [(np.float32([0, 1, np.nan, 1, 1]), []), (np.zeros(5, np.int32), ["I32"])]
)
def test_values_that_are_not_finite_and_whole_numbers_are_refused(saved, net, values, words):
    with pytest.raises(UsageError, match=says("'fc.bias'", *words)):
        read_weights(changed(saved[0], **{"fc.bias": values}), net.graph())


@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1])
def test_truncated_files_are_refused(saved, net, keep):
    path, _ = saved
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=says(path)):
        TensorFile(path)


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 16,
        b"[1]",
        {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}},
        {"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
    ],
)
def test_wrong_headers_are_refused(tmp_path, header):
    path = raw(tmp_path / "w.safetensors", header, b"1234")
    with pytest.raises(UsageError, match=says(path)):
        TensorFile(tmp_path / "w.safetensors")


def test_what_is_no_file(tmp_path, net):
    long = tmp_path / "long.safetensors"
    long.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")  # and not read
    (tmp_path / "folder.safetensors").mkdir()
    pointer = tmp_path / "pointer.safetensors"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 93\n")
    with pytest.raises(UsageError, match=says(pointer, "git-lfs", "`git lfs pull`")):
        TensorFile(pointer)
    for path, *words in ((long, "whole"), (tmp_path / "none.safetensors",), (tmp_path / "folder.safetensors", "read")):
        with pytest.raises(UsageError, match=says(path, *words)):
            TensorFile(path)
    with pytest.raises(UsageError, match=says("--init", "none.pth")):  # unread
        read_weights("none.pth", net.graph())
