"""Model files: TOML, one a model. models/README.md describes the format."""

import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from ringtrain import parsing
from ringtrain.errors import ModelError, nearest, plain
from ringtrain.nn import blocks, texts
from ringtrain.nn.base import Layer, Shape
from ringtrain.nn.catalogue import LAYERS
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.settings import Flag, IntegerSetting, Number, WordSetting
from ringtrain.nn.shapes import format_shape

KEYS = ("summary", "input", "blocks", "layers", "recipe", "results")
RESULT_KEYS = (
    "data", "ranks", "epochs", "iterations", "test_loss", "test_accuracy", "top5_accuracy", "mean_iou", "f1", "rmse",
    "mae", "r2", "command",
)  # fmt: skip
IMAGE_EXTENTS, MOST_EXTENTS = 3, 4  # of an input
LAYER_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The input of a network: (image - mean) · scale / std, of images with values from 0 to 255.

    shape: [H, W, C] after cropping; or as stored: [L], [L, C] or [D, H, W, C]
    mean:  "none", "channel" or "image": that of the data set's training examples
    std:   "none" or "channel"
    scale: multiplies after the mean is subtracted
    pad:   zeros a side (after the mean is subtracted), of which a random crop is taken in training; of [H, W, C] alone
    flip:  whether images are mirrored at random in training; of [H, W, C] alone
    """

    shape: Shape
    mean: str = "none"
    std: str = "none"
    scale: float = 1.0
    pad: int = 0
    flip: bool = False


INPUT_KEYS = {
    "mean": WordSetting(("none", "channel", "image")),
    "std": WordSetting(("none", "channel")),
    "scale": Number(),
    "pad": IntegerSetting(0),
    "flip": Flag(),
}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model file, read and checked. ``text`` is the file: :func:`parse_model` makes an equal spec of it."""

    name: str
    summary: str
    input: InputSpec
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
    found = [path for folder in folders() for path in sorted(folder.glob("*.toml"))]
    return {path.stem: path for path in reversed(found)}


def load_model(name_or_path) -> ModelSpec:
    """Read a model by name ("lenet") or path ("my/net.toml").

    Raises: ModelError if it does not exist, is not TOML, or does not describe a network
    """
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
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None


def _model(table: dict, name: str, text: str) -> ModelSpec:
    _known("the model", table, KEYS)
    held = _typed(table, "blocks", dict, {})
    layers = blocks.expand_blocks(_tables(table, "layers"), {name: _tables(held, name) for name in held})
    spec = ModelSpec(
        name=plain(name),
        summary=_typed(table, "summary", str, ""),
        input=_input(_typed(table, "input", dict, {})),
        nodes=_nodes(layers),
        recipe=_typed(table, "recipe", dict, {}),
        results=tuple(_tables(table, "results")),
        text=text,
    )
    for result in spec.results:
        _known("an entry of results", result, RESULT_KEYS)
    spec.graph()  # names and shapes are checked now, not when training starts
    return spec


def _known(owner: str, table: dict, keys) -> None:
    for key in table:
        if key not in keys:
            raise ModelError(f"{owner} has an unknown key {key!r}; {nearest(key, keys)}")


TYPES: dict[type, str] = {str: "a text", dict: "a table", list: "a list of tables"}


def _typed(table: dict, key: str, kind: type, default):
    value = table.get(key, default)
    if not isinstance(value, kind):
        raise ModelError(f"{key} wants {TYPES[kind]}, got {value!r}")
    return value


def _tables(table: dict, key: str) -> list[dict]:
    entries = _typed(table, key, list, [])
    for entry in entries:
        if not isinstance(entry, dict):
            raise ModelError(f"{key} wants {TYPES[list]}, got the entry {entry!r}")
    return entries


def _input(table: dict) -> InputSpec:
    _known("input", table, ("shape", *INPUT_KEYS))
    values = {key: _read(texts.INPUT_KEY(key=key), INPUT_KEYS[key], table[key]) for key in table if key != "shape"}
    spec = InputSpec(_input_shape(table.get("shape")), **values)
    for key in ("pad", "flip"):
        if getattr(spec, key) and len(spec.shape) != IMAGE_EXTENTS:
            raise ModelError(
                f"input: {key} is for images of [height, width, channels], and shape is {format_shape(spec.shape)}: "
                f"leave {key} out"
            )
    return spec


def _input_shape(given) -> Shape:
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_EXTENTS:
        raise ModelError(
            "input: shape wants one to four whole numbers, such as [height, width, channels], [length] or [length, "
            f"channels], got {given!r}"
        )
    return tuple(_read(texts.INPUT_KEY(key="shape"), IntegerSetting(1), extent) for extent in given)


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
            f"{nearest(str(kind), LAYERS)}"
        )
    given = {key: value for key, value in entry.items() if key not in ("name", "kind", "inputs")}
    return LAYERS[kind](name, **_settings(f"layer {name!r} ({kind})", LAYERS[kind], given))


def _settings(where: str, kind: type, given: dict) -> dict:
    known = {f.name: f for f in fields(kind) if "setting" in f.metadata}
    _known(where, given, (*known, "name", "kind", "inputs"))
    for key, f in known.items():
        if f.default is MISSING and key not in given:
            raise ModelError(f"{where} wants the key {key!r}")
    return {key: _read(f"{where}: {key}", known[key].metadata["setting"], given[key]) for key in given}


def _read(where: str, setting, value):
    try:
        return setting.read(value)
    except ModelError as error:
        raise ModelError(texts.AT_KEY(key=where, problem=error)) from None


def _inputs(entry: dict, before: str) -> tuple[str, ...]:
    inputs = entry.get("inputs", [before])
    if not isinstance(inputs, list) or not inputs or not all(isinstance(source, str) for source in inputs):
        raise ModelError(f"layer {entry['name']!r}: inputs wants a list of layer names, got {inputs!r}")
    return tuple(inputs)
