"""The models that ship: they load, have the published numbers of parameters, and run forward and backward."""

import re
from pathlib import Path

import numpy as np
import pytest
from nn_support import Net, make_pass, reference

from ringtrain.config.resolve import resolve
from ringtrain.nn import spec
from ringtrain.nn.catalogue import LAYERS
from ringtrain.nn.describe import total

# Caffe's examples and models, He et al. 2016, Simonyan & Zisserman 2015 (table 2: 138 million); resnet20 has its three
# projections (2,560 weights and 224 scales) besides.
PARAMETERS = {
    "digits": 76_522,
    "mlp": 1_863_690,
    "lenet": 431_080,
    "cifar10_quick": 145_578,
    "resnet20": 272_474,
    "resnet18": 11_173_962,
    "resnet18_imagenet": 11_689_512,  # torchvision's
    "resnet50": 25_557_032,
    "alexnet": 60_965_224,
    "vit_small": 22_050_664,  # timm's
    "convnext_tiny": 28_589_128,  # timm's
    "transformer": 71_370,  # ours: 28·64 + 64, 28·64 places, twice 33,472, 128 and 650
    "unet": 116_753,
    "gpt": 875_264,  # ours: 32,768 and 128·128 places, four times 198,272, 256 and 32,768
}
OUTPUTS = dict.fromkeys(PARAMETERS, (10,)) | dict.fromkeys(
    ("resnet18_imagenet", "resnet50", "alexnet", "vit_small", "convnext_tiny"), (1000,)
)
OUTPUTS["unet"], OUTPUTS["gpt"] = (64, 64, 1), (128, 256)
LARGE = {"resnet18", "resnet18_imagenet", "resnet50", "alexnet", "vit_small", "convnext_tiny"}


def test_these_models_ship():
    assert set(spec.available()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_publication_and_recipes_are_configurations(name):
    model = spec.load_model(name)
    config = resolve((name, model.recipe))
    assert config.run.batch and config.optimizer.lr and (config.run.epochs or config.run.iterations)
    sums = total(model.graph().describe())
    assert sums.parameters == PARAMETERS[name]
    assert sums.shape == OUTPUTS[name]
    assert model.summary


# Those that run on images of so many pixels a side, with an eighth of the features.
SMALLER = {"alexnet": 67, "resnet18_imagenet": 64, "resnet50": 64, "vit_small": 32, "convnext_tiny": 32}


@pytest.mark.parametrize("name", sorted(set(PARAMETERS) - LARGE - {"unet", "gpt"}) + list(SMALLER))
def test_two_examples_run_forward_and_backward(name):
    text = spec.load_model(name).text
    if name in SMALLER:
        text = re.sub(r"\[22[47], 22[47], 3\]", f"[{SMALLER[name]}, {SMALLER[name]}, 3]", text)
        text = re.sub(
            r"((?:units|channels|groups|narrow|wide) = )(\d\d+)", lambda at: f"{at[1]}{int(at[2]) // 8}", text
        )
    model = spec.parse_model(text, name)
    net = Net(model.nodes, model.input.shape, count=2, ops=reference("float32"))
    loss, spans = net.step()
    assert [span.name for span in spans] == [span.name for span in reversed(net.arena.spans)]
    assert np.isfinite(loss)
    evaluation = make_pass(net.ops, 2, training=False)
    logits, _ = net.graph.forward(evaluation, net.ops.from_host(net.x.astype(np.float32)))
    assert np.isfinite(net.ops.to_host(logits)).all()


def test_a_field_runs_forward_and_backward():
    model = spec.load_model("unet")
    net = Net(model.nodes, model.input.shape, count=2, ops=reference("float32"))
    training, x = make_pass(net.ops, 2), net.ops.from_host(net.x.astype(np.float32))
    y, tapes = net.graph.forward(training, x)
    evaluated, _ = net.graph.forward(make_pass(net.ops, 2, training=False), x)
    assert np.isfinite(y).all() and np.array_equal(y, evaluated)
    spans = list(net.graph.backward(training, y.copy(), tapes))
    assert [span.name for span in spans] == [span.name for span in reversed(net.arena.spans)]
    assert all(net.ops.to_host(net.arena.grad(span)).any() for span in spans)


SHAPES = {
    "cifar10_quick": {"pool1": (16, 16, 32), "pool2": (8, 8, 32), "pool3": (4, 4, 64)},
    "lenet": {"flat": (800,)},
    "alexnet": {"pool1": (27, 27, 96), "pool2": (13, 13, 256), "pool5": (6, 6, 256)},
    "vit_small": {"patch_embed.proj": (14, 14, 384), "cls_token": (197, 384)},
    "convnext_tiny": {"stem.1": (56, 56, 96), "stages.3.blocks.2.sum": (7, 7, 768)},
    "resnet18": {"stage4.2.relu2": (4, 4, 512)},
    # Version 1.5: images halve behind the 3x3 convolution of a stage's first block.
    "resnet50": {
        "conv": (112, 112, 64), "pool1": (56, 56, 64), "stage1.3.relu3": (56, 56, 256),
        "stage2.1.relu1": (56, 56, 128), "stage2.1.relu2": (28, 28, 128), "stage4.3.relu3": (7, 7, 2048),
    },
}  # fmt: skip
# Billions of multiplications, as reported: the CIFAR stem; version 1.5 (3.86 for the original); by both papers.
MULTIPLICATIONS = {"resnet18": 0.556e9, "resnet50": 4.09e9, "vit_small": 4.6e9, "convnext_tiny": 4.5e9}
# The last scale of a residual block starts at zero.
ZERO = {
    "resnet20": {f"stage{s}.{b}.norm2.gamma" for s in (1, 2, 3) for b in (1, 2, 3)},
    "resnet50": {f"stage{s}.{b}.norm3.gamma" for s, blocks in enumerate((3, 4, 6, 3), 1) for b in range(1, blocks + 1)},
}


@pytest.mark.parametrize("name", [*SHAPES, "resnet20"])
def test_known_shapes_costs_and_scales(name):
    graph = spec.load_model(name).graph()
    assert {layer: graph.shapes[layer] for layer in SHAPES.get(name, ())} == SHAPES.get(name, {})
    if name in MULTIPLICATIONS:
        assert total(graph.describe()).flops == pytest.approx(2 * MULTIPLICATIONS[name], rel=0.01)
    if name in ZERO:
        starts = {key: p.fill.value for key, p in graph.parameters() if key.endswith("gamma")}
        assert {key for key, start in starts.items() if start == 0} == ZERO[name]


def test_the_multipliers_of_alexnet_are_caffes():
    """AlexNet's convolutions 2, 4 and 5 see half of the channels; every bias learns twice as fast and does not
    decay."""
    table = dict(spec.load_model("alexnet").graph().parameters())
    assert [table[f"conv{i}.weight"].shape[2] for i in range(1, 6)] == [3, 48, 256, 192, 192]
    biases = [p for name, p in table.items() if name.endswith("bias")]
    assert {(p.lr, p.decay) for p in biases} == {(2, 0)}
    assert [p.fill.value for p in biases] == [0, 0.1, 0, 0.1, 0.1, 0.1, 0.1, 0]
    assert [table[f"fc{i}.weight"].fill.value for i in (6, 7, 8)] == [0.005, 0.005, 0.01]
    fully = sum(p.shape[0] * p.shape[1] for name, p in table.items() if name.startswith("fc") and len(p.shape) == 2)
    assert fully / PARAMETERS["alexnet"] > 0.95


def test_the_examples_of_the_readme_are_models():
    readme = (Path(__file__).parents[2] / "models" / "README.md").read_text()
    small, blocks = (part.split("```")[0] for part in readme.split("```toml")[1:])
    assert [node.name for node in spec.parse_model(small, "small").nodes] == ["conv", "relu", "pool", "flat", "out"]
    model = spec.parse_model("input = { shape = [8, 8, 16] }\n" + blocks, "blocks")
    assert [node.name for node in model.nodes][:5] == ["stem", "one.conv", "one.relu", "one.sum", "two.conv"]
    for name, count in PARAMETERS.items():
        assert f"| `{name}` | {count:,} |" in readme
    for kind in LAYERS:
        assert f"`{kind}`" in readme
