"""Model files: what they say is what is built, and every mistake in one is explained."""

import pytest

from ringtrain.errors import ModelError
from ringtrain.nn import spec
from ringtrain.nn.conv import Conv2D
from ringtrain.nn.layers import Linear
from ringtrain.nn.settings import ParameterSpec, number
from tests.says import says

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
    """Its multipliers and fills reach the parameters; folding can be turned off."""
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
    table = dict(model.graph().parameters())
    assert set(table) == {"conv.weight", "side.weight", "side.bias", "out.weight", "out.bias"}
    assert (table["conv.weight"].lr, table["conv.weight"].fill.value) == (2.0, 0.01)
    assert (table["side.bias"].decay, table["side.bias"].fill.value) == (0.0, 1.0)
    assert (table["out.weight"].decay, table["out.weight"].fill.fan_in) == (250.0, 4)
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
    model = spec.load_model("resnet20")  # whose text makes the same model again
    again = spec.parse_model(model.text, model.name)
    assert (again.nodes, again.input, again.recipe) == (model.nodes, model.input, model.recipe)


def test_files_that_are_not_there_or_not_readable(tmp_path):
    cut_off, binary, unknown = (tmp_path / f"{name}.toml" for name in ("cut_off", "binary", "unknown"))
    cut_off.write_text("layers = [")
    binary.write_bytes(b"\xff\xfe")
    unknown.write_text(layer_line('kind = "Convv"'))
    for path, words in (
        ("lenett", says("'lenett'", "did you mean 'lenet'? known: alexnet")),
        ("nets/my.toml", says("'nets/my.toml'")),
        (cut_off, says(cut_off)),
        (binary, says(binary)),
        (unknown, says("'a'", "'Convv'", "--plugin")),
    ):
        with pytest.raises(ModelError, match=words) as error:
            spec.load_model(path)
    assert str(error.value).startswith(f"{unknown}: ")


CONV = 'kind = "Conv2D", channels = 4, kernel = 3'

MISTAKES = [
    ("sumary = 'x'", "'sumary'; did you mean 'summary'?"),
    ("summary = 3\ninput = { shape = [8] }", "summary is 3"),
    ("input = 3", "input is 3"),
    ("recipe = 3\ninput = { shape = [8, 8, 3] }", "recipe is 3"),
    ("layers = 3\ninput = { shape = [8, 8, 3] }", "layers is 3"),
    ("input = { shape = [8, 8, 3] }\nlayers = [3]", "layers[0] is 3"),
    ("layers = []", "input is missing"),
    ("input = { mean = 'none' }", "input.shape is missing; wanted one to four whole numbers"),
    ("input = { shape = [8, 8, 1, 1, 1] }", "input.shape is [8, 8, 1, 1, 1]"),
    ("input = { shape = [8, 8], pad = 2 }", says("pad", "8x8")),
    ("input = { shape = [8], flip = true }", says("flip", "8")),
    ("input = { shape = [8, 8, 0] }", "input.shape[2] is 0"),
    ("input = { shape = [8, 8, 3], men = 1 }", "input has an unknown key 'men'; did you mean 'mean'?"),
    ("input = { shape = [8, 8, 3], mean = 'pixel' }", "input.mean is 'pixel'"),
    ("input = { shape = [8, 8, 3], std = 'image' }", "input.std is 'image'"),
    ("input = { shape = [8, 8, 3], scale = 'x' }", "input.scale is 'x'"),
    ("input = { shape = [8, 8, 3], pad = -1 }", "input.pad is -1"),
    ("input = { shape = [8, 8, 3], flip = 1 }", "input.flip is 1"),
    ("input = { shape = [8, 8, 3] }", says("layers", "least")),
    ("input = { shape = [8, 8, 3] }\nlayers = [ {} ]", says("None", {})),
    (layer_line('kind = "Flatten"').replace('"a"', '"a b"'), says("'a b'", {"name": "a b", "kind": "Flatten"})),
    (layer_line("x = 1"), says("--plugin", "'a'", "''")),
    (layer_line("kind = ['Conv2D']"), says("--plugin", "'a'", ["Conv2D"])),
    (
        layer_line("kind = 'Conv2d'"),
        says("--plugin", "'a'", "'Conv2d'", "did you mean 'Conv2D'? known: Add, Attention"),
    ),
    (layer_line(CONV + ", strid = 2"), "layer 'a' (Conv2D): it has an unknown key 'strid'; did you mean 'stride'?"),
    (layer_line("kind = 'LRN'"), "--init RUN"),
    (layer_line(CONV + ", relu = true"), "layer 'a' (Conv2D): it has an unknown key 'relu'"),
    (layer_line('kind = "Conv2D", channels = 4'), "layer 'a' (Conv2D): kernel is missing"),
    (layer_line(CONV + ", stride = 0"), "layer 'a' (Conv2D): stride is 0; wanted a whole number at least 1"),
    (layer_line(CONV + ", stride = 1.5"), "stride is 1.5"),
    (layer_line(CONV + ", pad = true"), "pad is True"),
    (layer_line('kind = "MaxPool", kernel = 16, stride = 1'), "kernel is 16; wanted a whole number at least 1 and"),
    (layer_line('kind = "Dropout", rate = 1'), "rate is 1.0; wanted a number at least 0 and below 1"),
    (layer_line('kind = "BatchNorm", rate = 0'), "rate is 0.0; wanted a number above 0 and at most 1"),
    (layer_line('kind = "BatchNorm", gamma = inf'), "gamma is inf"),
    (layer_line('kind = "BatchNorm", gamma = nan'), "gamma is nan"),
    (layer_line('kind = "Upsample", scale = 2, mode = "around"'), "mode is 'around'; wanted another word"),
    (layer_line(CONV + ", inputs = 'input'"), says("'a'", "'input'")),
    (layer_line(CONV + ", inputs = []"), says("'a'", [])),
    (layer_line(CONV + ", inputs = ['b']"), says("'a'", "'b'")),
    (layer_line(CONV + ", weight = 3"), "weight is 3; wanted a table like { fill"),
    (layer_line(CONV + ", bias = 3"), "bias is 3; wanted true, false or a table like { fill"),
    (layer_line(CONV + ", weight = { fill = 'gauss' }"), "weight.fill is 'gauss'; wanted another word"),
    (layer_line(CONV + ", weight = { fill = 'gaussian' }"), "weight.std is missing"),
    (layer_line(CONV + ", weight = { fill = 'he', std = 1 }"), "weight has an unknown key 'std'"),
    (layer_line(CONV + ", weight = { lr = -1 }"), "weight.lr is -1.0; wanted a number at least 0"),
    (layer_line(CONV + ", weight = { fill = 'uniform', bound = 'x' }"), "weight.bound is 'x'; wanted a number"),
    (layer_line('kind = "Linear", units = 3'), says("'a'", "Linear", "8x8x3", "Flatten", "GlobalAvgPool")),
    (layer_line(CONV) + "\n[[results]]\naccuracy = 1", "results[0] has an unknown key 'accuracy'"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[text.splitlines()[-1] for text, _ in MISTAKES])
def test_mistakes_are_explained(text, message):
    with pytest.raises(ModelError, match=says(message)) as error:
        spec.parse_model(text, "m", "m.toml")
    assert str(error.value).startswith("m.toml: ")


def test_a_bound_of_another_name_is_refused():
    with pytest.raises(TypeError, match=says("least", "low")):
        number(1.0, least=0)
