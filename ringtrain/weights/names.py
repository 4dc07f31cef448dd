"""The names of torchvision's resnet18 and resnet50, and of timm's models.

A network has torchvision's if its layers with parameters have the names of the model that ships with ringtrain: also
with another number of classes, or another stem. A parameter has timm's name where its layer has.
"""

import math
from collections.abc import Collection
from itertools import takewhile

from ringtrain.nn.base import Shape

RESNET_TOP = {"conv": "conv1", "norm": "bn1", "fc": "fc"}
BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
DEPTH = {"resnet18": 2, "resnet50": 3}  # convolutions of a block
TIMM = {  # the end of a parameter's name in PyTorch's layers: its end, and its axes, in timm's models
    "attn.in_proj_weight": ("attn.qkv.weight", 2),
    "attn.in_proj_bias": ("attn.qkv.bias", 1),
    "attn.out_proj.weight": ("attn.proj.weight", 2),
    "attn.out_proj.bias": ("attn.proj.bias", 1),
    "mlp.fc1.weight": ("mlp.fc1.weight", 2),
    "mlp.fc2.weight": ("mlp.fc2.weight", 2),
    "gamma.weight": ("gamma", 1),
    "cls_token.weight": ("cls_token", 3),
    "pos_embed.weight": ("pos_embed", 3),
}


def _resnet(model: str) -> dict[str, str]:
    depth, names = DEPTH[model], dict(RESNET_TOP)
    for stage, blocks in enumerate(BLOCKS[model], 1):
        for block in range(1, blocks + 1):
            layer, module = f"stage{stage}.{block}", f"layer{stage}.{block - 1}"
            for i in range(1, depth + 1):
                names |= {f"{layer}.conv{i}": f"{module}.conv{i}", f"{layer}.norm{i}": f"{module}.bn{i}"}
            if block == 1 and (stage > 1 or model == "resnet50"):
                names |= {
                    f"{layer}.short": f"{module}.downsample.0",
                    f"{layer}.norm{depth + 1}": f"{module}.downsample.1",
                }
    return names


TORCHVISION = {model: _resnet(model) for model in BLOCKS}
COUNTER = "num_batches_tracked"  # of a BatchNorm in PyTorch


def torchvision_names(layers: Collection[str]) -> dict[str, str]:
    """Return the name there of each of these layers with parameters; none if they are of no model of torchvision."""
    return next((names for names in TORCHVISION.values() if names.keys() == set(layers)), {})


def timm_form(name: str, shape: Shape) -> tuple[str, Shape]:
    """Return the name and the shape in timm's models of a parameter that has these in PyTorch's layers: a 1x1
    convolution is a product there, a scale a vector."""
    for end, (end_there, axes) in TIMM.items():
        if f".{name}".endswith(f".{end}") and math.prod(shape[axes:]) == 1:
            return name.removesuffix(end) + end_there, ((1,) * (axes - len(shape)) + shape)[:axes]
    return name, shape


def common_prefix(names: Collection[str]) -> str:
    """Return what precedes all of these names, as DistributedDataParallel's "module." or "backbone."."""
    groups = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return "".join(f"{group[0]}." for group in takewhile(lambda group: len(set(group)) == 1, groups))


def is_counter(name: str) -> bool:
    """Whether a tensor counts the batches of a BatchNorm, and is no weight."""
    return name.rpartition(".")[2] == COUNTER
