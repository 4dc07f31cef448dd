"""Model files: what they say is what is built, and every mistake in one is explained."""

import math

import pytest

from ringtrain.errors import ModelError
from ringtrain.nn import spec, texts
from ringtrain.nn.conv import Conv2D
from ringtrain.nn.layers import Linear
from ringtrain.nn.settings import ParameterSpec

GOOD = """
summary = "a small one"
input = { shape = [8, 8, 3], mean = "channel", std = "channel", scale = 0.5, pad = 2, flip = true }
layers = [
  { name = "conv", kind = "Conv2D", channels = 4, kernel = 3, bias = false, \
    weight = { fill = "gaussian", std = 0.01, lr = 2 } },
  { name = "relu", kind = "ReLU" },
  { name = "side", kind = "Conv2D", channels = 4, kernel = 1, inputs = ["relu"], bias = { value = 1, decay = 0 } },
  { name = "sum", kind = "Add", inputs = ["relu", "side"] },
  { name = "pool", kind = "GlobalAvgPool" },
  { name = "out", kind = "Linear", units = 5, weight = { decay = 250 }, bias = { lr = 2 } },
]
[recipe]
batch = 7
lr = 0.1
[[results]]
data = "toy"
ranks = 2
epochs = 3
test_accuracy = 0.5
command = "ringtrain train"
"""


def layer_line(text: str) -> str:
    """A model of which ``text`` is the one layer."""
    return f'input = {{ shape = [8, 8, 3] }}\nlayers = [ {{ name = "a", {text} }} ]'


def test_a_file_says_what_is_built():
    model = spec.parse_model(GOOD, "small")
    assert (model.name, model.summary, model.text) == ("small", "a small one", GOOD)
    assert model.input == spec.InputSpec((8, 8, 3), "channel", "channel", 0.5, 2, True)
    assert model.recipe == {"batch": 7, "lr": 0.1}
    assert model.results[0]["test_accuracy"] == 0.5
    layers = {node.name: node for node in model.nodes}
    weight = ParameterSpec("gaussian", 0.01, lr=2.0)
    assert layers["conv"].layer == Conv2D("conv", 4, 3, weight=weight, bias=None)
    assert layers["conv"].inputs == ("input",)
    assert layers["sum"].inputs == ("relu", "side")
    assert layers["side"].layer.bias == ParameterSpec("constant", 1.0, decay=0.0)
    out = Linear("out", 5, ParameterSpec("he", decay=250.0), ParameterSpec("constant", lr=2.0))
    assert layers["out"].layer == out
    assert layers["out"].inputs == ("pool",)


def test_multipliers_and_fills_reach_the_parameters():
    table = dict(spec.parse_model(GOOD, "small").graph().parameters())
    assert set(table) == {"conv.weight", "side.weight", "side.bias", "out.weight", "out.bias"}
    assert (table["conv.weight"].lr, table["conv.weight"].fill.value) == (2.0, 0.01)
    assert (table["side.bias"].decay, table["side.bias"].fill.value) == (0.0, 1.0)
    assert (table["out.weight"].decay, table["out.weight"].fill.fan_in) == (250.0, 4)


def test_folding_can_be_turned_off():
    model = spec.parse_model(GOOD, "small")
    assert len(model.graph(fused=False).plan) == len(model.nodes)
    assert [node.name for node in model.graph().plan] == ["conv", "side", "sum", "pool", "out"]


def test_defaults_are_plain_images_and_no_recipe():
    model = spec.parse_model(layer_line('kind = "Flatten"'), "flat")
    assert model.input == spec.InputSpec((8, 8, 3))
    assert (model.summary, model.recipe, model.results) == ("", {}, ())


def test_a_path_or_a_name_loads(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(GOOD)
    assert spec.load_model(str(path)) == spec.load_model(path)
    assert spec.load_model(path).name == "small"
    assert spec.load_model("lenet").name == "lenet"
    assert spec.available()["lenet"].name == "lenet.toml"


def test_the_text_makes_the_same_model_again():
    model = spec.load_model("resnet20")
    again = spec.parse_model(model.text, model.name)
    assert (again.nodes, again.input, again.recipe) == (model.nodes, model.input, model.recipe)


def test_files_that_are_not_there_or_not_readable(tmp_path):
    with pytest.raises(ModelError, match=texts.NO_MODEL.pattern(name="lenett", hint="did you mean 'lenet'? known: al")):
        spec.load_model("lenett")
    with pytest.raises(ModelError, match=texts.NO_MODEL.pattern(name="nets/my.toml")):
        spec.load_model("nets/my.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("layers = [")
    with pytest.raises(ModelError, match=texts.NOT_TOML.pattern(source=broken)):
        spec.load_model(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=texts.UNREADABLE.pattern(source=broken)):
        spec.load_model(broken)


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(layer_line('kind = "Convv"'))
    with pytest.raises(ModelError) as error:
        spec.load_model(path)
    assert str(error.value).startswith(f"{path}: {texts.UNKNOWN_KIND(layer='a', kind='Convv', hint='')}")


CONV = 'kind = "Conv2D", channels = 4, kernel = 3'
CONV_A = texts.LAYER_OF_KIND(layer="a", kind="Conv2D")


def unknown(owner, key, hint=""):
    return texts.UNKNOWN_KEY(owner=owner, key=key, hint=hint)


def of_input(key, problem):
    return texts.AT_KEY(key=texts.INPUT_KEY(key=key), problem=problem)


def of_layer(kind, key, problem):
    return texts.AT_KEY(key=texts.LAYER_KEY(layer="a", kind=kind, key=key), problem=problem)


def within(bounds, value):
    return texts.NUMBER_WITHIN(bounds=bounds, value=value)


MISTAKES = [
    ("sumary = 'x'", unknown(texts.THE_MODEL, "sumary", "did you mean 'summary'?")),
    ("summary = 3", texts.TYPE(key="summary", type=texts.A_TEXT, value=3)),
    ("input = 3", texts.TYPE(key="input", type=texts.A_TABLE, value=3)),
    ("recipe = 3\ninput = { shape = [8, 8, 3] }", texts.TYPE(key="recipe", type=texts.A_TABLE, value=3)),
    ("layers = 3", texts.TYPE(key="layers", type=texts.A_LIST_OF_TABLES, value=3)),
    (
        "input = { shape = [8, 8, 3] }\nlayers = [3]",
        texts.ENTRY_TYPE(key="layers", type=texts.A_LIST_OF_TABLES, value=3),
    ),
    ("layers = []", texts.INPUT_SHAPE(value=None)),
    ("input = { shape = [8, 8, 1, 1, 1] }", texts.INPUT_SHAPE(value=[8, 8, 1, 1, 1])),
    ("input = { shape = [8, 8], pad = 2 }", texts.INPUT_NO_IMAGE(key="pad", shape="8x8")),
    ("input = { shape = [8], flip = true }", texts.INPUT_NO_IMAGE(key="flip", shape="8")),
    ("input = { shape = [8, 8, 0] }", of_input("shape", texts.WHOLE_NUMBER(least=1, value=0))),
    ("input = { shape = [8, 8, 3], men = 1 }", unknown("input", "men", "did you mean 'mean'?")),
    ("input = { shape = [8, 8, 3], mean = 'pixel' }", of_input("mean", texts.WORD(value="pixel", hint=""))),
    ("input = { shape = [8, 8, 3], std = 'image' }", of_input("std", texts.WORD(value="image", hint=""))),
    ("input = { shape = [8, 8, 3], scale = 'x' }", of_input("scale", texts.NUMBER(value="x"))),
    ("input = { shape = [8, 8, 3], pad = -1 }", of_input("pad", texts.WHOLE_NUMBER(least=0, value=-1))),
    ("input = { shape = [8, 8, 3], flip = 1 }", of_input("flip", texts.FLAG(value=1))),
    ("input = { shape = [8, 8, 3] }", texts.NO_LAYERS()),
    ("input = { shape = [8, 8, 3] }\nlayers = [ {} ]", texts.LAYER_NAME(name=None, entry={})),
    (
        layer_line('kind = "Flatten"').replace('"a"', '"a b"'),
        texts.LAYER_NAME(name="a b", entry={"name": "a b", "kind": "Flatten"}),
    ),
    (layer_line("x = 1"), texts.UNKNOWN_KIND(layer="a", kind="", hint="")),
    (layer_line("kind = ['Conv2D']"), texts.UNKNOWN_KIND(layer="a", kind=["Conv2D"], hint="")),
    (
        layer_line("kind = 'Conv2d'"),
        texts.UNKNOWN_KIND(layer="a", kind="Conv2d", hint="did you mean 'Conv2D'? known: Add, Attention"),
    ),
    (layer_line(CONV + ", strid = 2"), unknown(CONV_A, "strid", "did you mean 'stride'?")),
    (layer_line(CONV + ", relu = true"), unknown(CONV_A, "relu")),
    (layer_line('kind = "Conv2D", channels = 4'), texts.LAYER_KEY_MISSING(layer="a", kind="Conv2D", key="kernel")),
    (layer_line(CONV + ", stride = 0"), of_layer("Conv2D", "stride", texts.WHOLE_NUMBER(least=1, value=0))),
    (layer_line(CONV + ", stride = 1.5"), of_layer("Conv2D", "stride", texts.WHOLE_NUMBER(least=1, value=1.5))),
    (layer_line(CONV + ", pad = true"), of_layer("Conv2D", "pad", texts.WHOLE_NUMBER(least=0, value=True))),
    (
        layer_line('kind = "MaxPool", kernel = 16, stride = 1'),
        of_layer("MaxPool", "kernel", texts.WHOLE_NUMBER_BETWEEN(least=1, most=15, value=16)),
    ),
    (layer_line('kind = "Dropout", rate = 1'), of_layer("Dropout", "rate", within("of at least 0 and below 1", 1))),
    (layer_line('kind = "BatchNorm", rate = 0'), of_layer("BatchNorm", "rate", within("above 0 and at most 1", 0))),
    (layer_line('kind = "BatchNorm", gamma = inf'), of_layer("BatchNorm", "gamma", texts.NUMBER(value=math.inf))),
    (layer_line('kind = "BatchNorm", gamma = nan'), of_layer("BatchNorm", "gamma", texts.NUMBER(value=math.nan))),
    (layer_line('kind = "LRN", region = "around"'), of_layer("LRN", "region", texts.WORD(value="around", hint=""))),
    (layer_line(CONV + ", inputs = 'input'"), texts.INPUT_NAMES(layer="a", value="input")),
    (layer_line(CONV + ", inputs = []"), texts.INPUT_NAMES(layer="a", value=[])),
    (layer_line(CONV + ", inputs = ['b']"), texts.UNKNOWN_INPUT(layer="a", source="b", hint="")),
    (layer_line(CONV + ", weight = 3"), of_layer("Conv2D", "weight", texts.PARAMETER(value=3))),
    (layer_line(CONV + ", bias = 3"), of_layer("Conv2D", "bias", texts.PARAMETER_OR_FLAG(value=3))),
    (
        layer_line(CONV + ", weight = { fill = 'gauss' }"),
        of_layer("Conv2D", "weight", texts.WORD(value="gauss", hint="")),
    ),
    (
        layer_line(CONV + ", weight = { fill = 'gaussian' }"),
        of_layer("Conv2D", "weight", texts.FILL_KEY_MISSING(fill="gaussian", key="std")),
    ),
    (
        layer_line(CONV + ", weight = { fill = 'he', std = 1 }"),
        of_layer("Conv2D", "weight", texts.UNKNOWN_FILL_KEY(key="std", hint="")),
    ),
    (
        layer_line(CONV + ", weight = { lr = -1 }"),
        of_layer("Conv2D", "weight", texts.AT_KEY(key="lr", problem=within("of at least 0", -1))),
    ),
    (
        layer_line(CONV + ", weight = { fill = 'uniform', bound = 'x' }"),
        of_layer("Conv2D", "weight", texts.AT_KEY(key="bound", problem=within("of at least 0", "x"))),
    ),
    (
        layer_line('kind = "Linear", units = 3'),
        texts.MISFIT(layer="a", kind="Linear", got="8x8x3", wanted=texts.FEATURES),
    ),
    (layer_line(CONV) + "\n[[results]]\naccuracy = 1", unknown(texts.A_RESULT, "accuracy")),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message[:60] for _, message in MISTAKES])
def test_mistakes_are_explained(text, message):
    with pytest.raises(ModelError) as error:
        spec.parse_model(text, "m", "m.toml")
    assert str(error.value).startswith("m.toml: ")
    assert message in str(error.value)
