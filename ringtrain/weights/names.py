"""The names of torchvision's models: resnet18, resnet50, vgg16 and alexnet.

A network has them if its layers with parameters have the names of the model that ships with ringtrain: also with
another number of classes, or another stem.
"""

from collections.abc import Collection

RESNET_TOP = {"conv": "conv1", "norm": "bn1", "fc": "fc"}
BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
DEPTH = {"resnet18": 2, "resnet50": 3}  # convolutions of a block
VGG16 = {  # layer → place in torchvision's features or classifier
    **{
        f"conv{block}_{i + 1}": f"features.{first + 2 * i}"
        for block, first, count in ((1, 0, 2), (2, 5, 2), (3, 10, 3), (4, 17, 3), (5, 24, 3))
        for i in range(count)
    },
    **{f"fc{6 + i}": f"classifier.{3 * i}" for i in range(3)},
}
ALEXNET = {
    **{f"conv{i}": f"features.{index}" for i, index in enumerate((0, 3, 6, 8, 10), 1)},
    "fc6": "classifier.1",
    "fc7": "classifier.4",
    "fc8": "classifier.6",
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


TORCHVISION = {"resnet18": _resnet("resnet18"), "resnet50": _resnet("resnet50"), "vgg16": VGG16, "alexnet": ALEXNET}
COUNTER = "num_batches_tracked"  # of a BatchNorm in PyTorch


def torchvision_names(layers: Collection[str]) -> dict[str, str]:
    """Return the name there of each of these layers with parameters; none if they are of no model of torchvision."""
    return next((names for names in TORCHVISION.values() if names.keys() == set(layers)), {})


def is_counter(name: str) -> bool:
    """Whether a tensor counts the batches of a BatchNorm, and is no weight."""
    return name.rpartition(".")[2] == COUNTER
