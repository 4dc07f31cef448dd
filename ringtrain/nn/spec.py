"""Model files: TOML, one a model. models/README.md describes the format."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from ringtrain import parsing
from ringtrain.errors import ModelError, nearest, plain
from ringtrain.nn import blocks
from ringtrain.nn.base import Layer, Shape
from ringtrain.nn.catalogue import LAYERS
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.settings import MOST, NUMBER
from ringtrain.nn.shapes import format_shape
from ringtrain.records import Rules, Unfit, check_keys, keys_of, read, read_fields

RESULT_KEYS = (
    "data", "ranks", "epochs", "iterations", "test_loss", "test_accuracy", "top5_accuracy", "perplexity", "mean_iou",
    "f1", "rmse", "mae", "r2", "command",
)  # fmt: skip
IMAGE_EXTENTS, MOST_EXTENTS = 3, 4  # of an input
INPUT_SHAPE = "one to four whole numbers, such as [height, width, channels], [length] or [length, channels]"
Unit = tuple[np.ndarray, np.ndarray]  # mean and std, float64 [K]: K is 1 or the output's last extent
LAYER_NAME = re.compile(r"[A-Za-z0-9_.-]+")
REMOVED = {"LRN": "this version has none: take the model without it, and the other weights by --init RUN"}


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The input of a network: (image - mean) · scale / std, of images with values from 0 to 255.

    shape: [H, W, C] after cropping; or as stored: [L], [L, C] or [D, H, W, C]
    mean:  "none", "channel" or "image": the mean of the data set's training examples
    std:   "none" or "channel"
    scale: multiplies after the mean is subtracted
    pad:   zeros a side (after the mean is subtracted), of which a random crop is taken in training; of [H, W, C] alone
    flip:  whether images are mirrored at random in training; of [H, W, C] alone"""

    shape: Annotated[Shape, Rules(lengths=range(1, MOST_EXTENTS + 1), low=1, high=MOST, wanted=INPUT_SHAPE)]
    mean: Annotated[str, Rules(choices=("none", "channel", "image"))] = "none"
    std: Annotated[str, Rules(choices=("none", "channel"))] = "none"
    scale: Annotated[float, Rules(NUMBER)] = 1.0
    pad: Annotated[int, Rules(high=MOST)] = 0
    flip: bool = False

    def factors(self, std: np.ndarray) -> np.ndarray:
        """The factor of each channel; that of a constant channel ignores its deviation. Shapes: [C] → [C]"""
        std = std if self.std == "channel" else np.ones(len(std))
        return self.scale / np.where(std > 0, std, 1.0)


def centred(image: np.ndarray, shape: Shape, crop: Shape) -> np.ndarray:
    """Return a mean image for examples of another height and width: the centres that the network sees, of the shape
    ``crop``, coincide; zeros beyond the image."""
    if shape == image.shape:
        return image
    if len(shape) != image.ndim:  # a sequence, with or without the extent of 1 of its channels
        return image.reshape(shape)
    moved = np.zeros(shape, image.dtype)
    slices = [_overlap(*each) for each in zip(image.shape, shape, crop, strict=True)]
    moved[tuple(into for _, into in slices)] = image[tuple(out for out, _ in slices)]
    return moved


def _overlap(extent: int, wanted: int, crop: int) -> tuple[slice, slice]:
    """(elements of the held extent, their places in the wanted one)"""
    shift = (wanted - crop) // 2 - (extent - crop) // 2
    start, stop = max(0, -shift), min(extent, wanted - shift)
    return slice(start, stop), slice(start + shift, stop + shift)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The unit of a network's output, where labels are values: it stands for output · std + mean.

    mean, std: "none", or "channel": of the training part's labels, along their last axis"""

    mean: Annotated[str, Rules(choices=("none", "channel"))] = "none"
    std: Annotated[str, Rules(choices=("none", "channel"))] = "none"

    def unit(self, output: Shape, moments: np.ndarray | None, accuracy: bool = False) -> Unit | None:
        """The unit of an output of this shape; None: the labels' own. ``moments``: mean and std of labels that are
        values, float64 [2, K]; ``accuracy``: whether the loss counts right answers. Raises ModelError"""
        if self == OutputSpec():
            return None
        if moments is None or accuracy:
            raise ModelError(
                "output: mean and std are for labels that are values (floats, such as float32) and --loss mse, mae or "
                "huber: leave output out of the model file, or store the labels so"
            )
        mean, std = moments
        if output[-1] == 1:  # which the labels may lack: their last axis is not that of the output
            mean, square = mean.mean(keepdims=True), np.mean(std**2 + mean**2, keepdims=True)
            std = np.sqrt(square - mean**2)
        return mean * (self.mean == "channel"), np.where((std > 0) & (self.std == "channel"), std, 1.0)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The form of a model file."""

    input: Annotated[InputSpec, Rules(known=True)]
    output: Annotated[OutputSpec, Rules(known=True)] = field(default_factory=OutputSpec)
    layers: list[dict] = field(default_factory=list)
    blocks: dict[str, list[dict]] = field(default_factory=dict)
    summary: str = ""
    recipe: dict = field(default_factory=dict)
    results: tuple[dict, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model file, read and checked. ``text`` is the file: :func:`parse_model` makes an equal spec of it."""

    name: str
    summary: str
    input: InputSpec
    output: OutputSpec
    nodes: tuple[Node, ...]
    recipe: dict
    results: tuple[dict, ...]
    text: str

    def graph(self, fused: bool = True) -> Graph:
        """Make the network's graph."""
        return Graph(self.nodes, self.input.shape, fused)


def folders() -> tuple[Path, ...]:
    """Return the folders of model files: in the package, or beside it in a source checkout."""
    package = Path(__file__).parents[1]
    return package / "models", package.parent / "models"


def available() -> dict[str, Path]:
    """Return the models that can be loaded by name; the first folder wins."""
    paths = [path for folder in folders() for path in sorted(folder.glob("*.toml"))]
    return {path.stem: path for path in reversed(paths)}


def load_model(name_or_path) -> ModelSpec:
    """Read a model by name ("lenet") or path ("my/net.toml").

    Raises: ModelError if it does not exist, is not TOML, or does not describe a network"""
    path = Path(name_or_path)
    if not path.is_file():
        known = available()
        name = str(name_or_path)
        if name not in known:
            raise ModelError(f"no model or model file {name!r}; {nearest(name, known)}")
        path = known[name]
    try:
        text = parsing.read_text(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    return parse_model(text, path.stem, str(path))


def parse_model(text: str, name: str, source: str = "model") -> ModelSpec:
    """Return the model that ``text`` describes. ``source`` is its name in errors."""
    try:
        table = parsing.parse_toml(text)
    except ValueError as error:
        raise ModelError(f"{source}: not a TOML file: {error}") from None
    try:
        return _model(table, name, text)
    except (ModelError, Unfit) as error:
        raise ModelError(f"{source}: {error}") from None


def _model(table: dict, name: str, text: str) -> ModelSpec:
    file = read(ModelFile, table, {"known": True})
    for key in ("pad", "flip"):
        if getattr(file.input, key) and len(file.input.shape) != IMAGE_EXTENTS:
            raise ModelError(
                f"input: {key} is for images of [height, width, channels], and shape is "
                f"{format_shape(file.input.shape)}: leave {key} out"
            )
    for number, result in enumerate(file.results):
        check_keys(result, RESULT_KEYS, f"results[{number}]")
    nodes = _nodes(blocks.expand_blocks(file.layers, file.blocks))
    spec = ModelSpec(plain(name), file.summary, file.input, file.output, nodes, file.recipe, file.results, text)
    spec.graph()  # names and shapes are checked now, not when training starts
    return spec


def _nodes(layers: list[dict]) -> tuple[Node, ...]:
    nodes, before = [], INPUT
    for entry in layers:
        layer = _layer(entry)
        nodes.append(Node(layer, _inputs(entry, before)))
        before = layer.name
    return tuple(nodes)


def _layer(entry: dict) -> Layer:
    name = entry.get("name")
    if not isinstance(name, str) or not LAYER_NAME.fullmatch(name):
        raise ModelError(f"a layer wants a name of letters, digits and _ . -, got {name!r} in {entry!r}")
    kind = entry.get("kind", "")
    if not isinstance(kind, str) or kind not in LAYERS:
        raise ModelError(
            f"layer {name!r}: unknown kind {kind!r} (one of your own needs --plugin FILE.py); "
            f"{REMOVED.get(str(kind)) or nearest(str(kind), LAYERS)}"
        )
    known = {key: rules for key, rules in keys_of(LAYERS[kind]).items() if "kind" in rules[2]}
    try:
        check_keys(entry, (*known, "name", "kind", "inputs"))
        return LAYERS[kind](name, **read_fields(known, entry))
    except Unfit as error:
        raise ModelError(f"layer {name!r} ({kind}): {error}") from None


def _inputs(entry: dict, before: str) -> tuple[str, ...]:
    inputs = entry.get("inputs", [before])
    if not isinstance(inputs, list) or not inputs or not all(isinstance(source, str) for source in inputs):
        raise ModelError(f"layer {entry['name']!r}: inputs wants a list of layer names, got {inputs!r}")
    return tuple(inputs)
