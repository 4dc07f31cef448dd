"""Model files: what they say is what is built, and every mistake in one is explained."""

import pytest

from ringtrain.errors import ModelError
from ringtrain.nn import spec
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
    model = spec.parse(GOOD, "small")
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
    table = dict(spec.parse(GOOD, "small").graph().parameters())
    assert set(table) == {"conv.weight", "side.weight", "side.bias", "out.weight", "out.bias"}
    assert (table["conv.weight"].lr, table["conv.weight"].fill.value) == (2.0, 0.01)
    assert (table["side.bias"].decay, table["side.bias"].fill.value) == (0.0, 1.0)
    assert (table["out.weight"].decay, table["out.weight"].fill.fan_in) == (250.0, 4)


def test_folding_can_be_turned_off():
    model = spec.parse(GOOD, "small")
    assert len(model.graph(fused=False).plan) == len(model.nodes)
    assert [node.name for node in model.graph().plan] == ["conv", "side", "sum", "pool", "out"]


def test_defaults_are_plain_images_and_no_recipe():
    model = spec.parse(layer_line('kind = "Flatten"'), "flat")
    assert model.input == spec.InputSpec((8, 8, 3))
    assert (model.summary, model.recipe, model.results) == ("", {}, ())


def test_a_path_or_a_name_loads(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(GOOD)
    assert spec.load(str(path)) == spec.load(path)
    assert spec.load(path).name == "small"
    assert spec.load("lenet").name == "lenet"
    assert spec.available()["lenet"].name == "lenet.toml"


def test_the_text_makes_the_same_model_again():
    model = spec.load("resnet20")
    again = spec.parse(model.text, model.name)
    assert (again.nodes, again.input, again.recipe) == (model.nodes, model.input, model.recipe)


def test_files_that_are_not_there_or_not_readable(tmp_path):
    with pytest.raises(ModelError, match=r"no model or model file 'lenett'; did you mean 'lenet'\? known: al"):
        spec.load("lenett")
    with pytest.raises(ModelError, match=r"no model or model file 'nets/my\.toml'"):
        spec.load("nets/my.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("layers = [")
    with pytest.raises(ModelError, match=r"broken\.toml: not a TOML file: "):
        spec.load(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"broken\.toml: cannot be read: "):
        spec.load(broken)


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(layer_line('kind = "Convv"'))
    with pytest.raises(ModelError) as error:
        spec.load(path)
    assert str(error.value).startswith(f"{path}: layer 'a': unknown kind 'Convv'; ")


CONV = 'kind = "Conv2D", channels = 4, kernel = 3'
MISTAKES = [
    ("sumary = 'x'", "the model has an unknown key 'sumary'; did you mean 'summary'?"),
    ("summary = 3", "summary wants a text, got 3"),
    ("input = 3", "input wants a table, got 3"),
    ("recipe = 3\ninput = { shape = [8, 8, 3] }", "recipe wants a table, got 3"),
    ("layers = 3", "layers wants a list of tables, got 3"),
    ("input = { shape = [8, 8, 3] }\nlayers = [3]", "layers wants a list of tables, got the entry 3"),
    ("layers = []", "input: shape wants three whole numbers [height, width, channels], got None"),
    ("input = { shape = [8, 8] }", "input: shape wants three whole numbers"),
    ("input = { shape = [8, 8, 0] }", "input: shape wants a whole number of at least 1, got 0"),
    ("input = { shape = [8, 8, 3], men = 1 }", "input has an unknown key 'men'; did you mean 'mean'?"),
    ("input = { shape = [8, 8, 3], mean = 'pixel' }", "input: mean wants one of these words, got 'pixel'"),
    ("input = { shape = [8, 8, 3], std = 'image' }", "input: std wants one of these words, got 'image'"),
    ("input = { shape = [8, 8, 3], scale = 'x' }", "input: scale wants a number, got 'x'"),
    ("input = { shape = [8, 8, 3], pad = -1 }", "input: pad wants a whole number of at least 0, got -1"),
    ("input = { shape = [8, 8, 3], flip = 1 }", "input: flip wants true or false, got 1"),
    ("input = { shape = [8, 8, 3] }", "the model has no layers"),
    ("input = { shape = [8, 8, 3] }\nlayers = [ {} ]", "a layer wants a name of letters, digits and _ . -, got None"),
    (layer_line('kind = "Flatten"').replace('"a"', '"a b"'), "a layer wants a name of letters"),
    (layer_line("x = 1"), "layer 'a': unknown kind ''"),
    (layer_line("kind = ['Conv2D']"), "layer 'a': unknown kind ['Conv2D']"),
    (layer_line("kind = 'Conv2d'"), "layer 'a': unknown kind 'Conv2d'; did you mean 'Conv2D'? known: Add, AvgPool"),
    (layer_line(CONV + ", strid = 2"), "layer 'a' (Conv2D) has an unknown key 'strid'; did you mean 'stride'?"),
    (layer_line(CONV + ", relu = true"), "layer 'a' (Conv2D) has an unknown key 'relu'"),
    (layer_line('kind = "Conv2D", channels = 4'), "layer 'a' (Conv2D) wants the key 'kernel'"),
    (layer_line(CONV + ", stride = 0"), "layer 'a' (Conv2D): stride wants a whole number of at least 1, got 0"),
    (layer_line(CONV + ", stride = 1.5"), "stride wants a whole number of at least 1, got 1.5"),
    (layer_line(CONV + ", pad = true"), "pad wants a whole number of at least 0, got True"),
    (layer_line('kind = "MaxPool", kernel = 16, stride = 1'), "whole number of at least 1 and at most 15, got 16"),
    (layer_line('kind = "Dropout", rate = 1'), "rate wants a number of at least 0 and below 1, got 1"),
    (layer_line('kind = "BatchNorm", rate = 0'), "rate wants a number above 0 and at most 1, got 0"),
    (layer_line('kind = "BatchNorm", gamma = inf'), "gamma wants a number, got inf"),
    (layer_line('kind = "BatchNorm", gamma = nan'), "gamma wants a number, got nan"),
    (layer_line('kind = "LRN", region = "around"'), "region wants one of these words, got 'around'"),
    (layer_line(CONV + ", inputs = 'input'"), "layer 'a': inputs wants a list of layer names, got 'input'"),
    (layer_line(CONV + ", inputs = []"), "layer 'a': inputs wants a list of layer names, got []"),
    (layer_line(CONV + ", inputs = ['b']"), "layer 'a' reads 'b', which no layer before it is called"),
    (layer_line(CONV + ", weight = 3"), 'weight wants a table like { fill = "gaussian", std = 0.01 }, got 3'),
    (layer_line(CONV + ", bias = 3"), "bias wants true, false or a table"),
    (layer_line(CONV + ", weight = { fill = 'gauss' }"), "weight wants one of these words, got 'gauss'; "),
    (layer_line(CONV + ", weight = { fill = 'gaussian' }"), "weight fill 'gaussian' wants the key 'std'"),
    (layer_line(CONV + ", weight = { fill = 'he', std = 1 }"), "weight has an unknown key 'std'"),
    (layer_line(CONV + ", weight = { lr = -1 }"), "weight lr wants a number of at least 0, got -1"),
    (layer_line(CONV + ", weight = { fill = 'uniform', bound = 'x' }"), "bound wants a number of at least 0, got 'x'"),
    (layer_line('kind = "Linear", units = 3'), "layer 'a' (Linear) got 8x8x3, wants a list of features"),
    (layer_line(CONV) + "\n[[results]]\naccuracy = 1", "an entry of results has an unknown key 'accuracy'"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message[:60] for _, message in MISTAKES])
def test_mistakes_are_explained(text, message):
    with pytest.raises(ModelError) as error:
        spec.parse(text, "m", "m.toml")
    assert str(error.value).startswith("m.toml: ")
    assert message in str(error.value)
