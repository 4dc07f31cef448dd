"""Blocks: written once, used many times."""

import pytest

from ringtrain.errors import ModelError
from ringtrain.nn import spec, texts
from ringtrain.nn.blocks import expand_blocks

BLOCK = [
    {"name": "a", "kind": "Linear", "units": "$units"},
    {"name": "b", "kind": "ReLU"},
    {"name": "sum", "kind": "Add", "inputs": ["b", "$input", "far"]},
]
LAYERS = [
    {"name": "far", "kind": "Flatten"},
    {"name": "one", "block": "twice", "units": 5},
    {"name": "two", "block": "twice", "units": 6},
    {"name": "end", "kind": "ReLU"},
]


def test_a_use_becomes_the_layers_of_the_block():
    assert expand_blocks(LAYERS, {"twice": BLOCK}) == [
        {"name": "far", "kind": "Flatten"},
        {"name": "one.a", "kind": "Linear", "units": 5, "inputs": ["far"]},
        {"name": "one.b", "kind": "ReLU"},
        {"name": "one.sum", "kind": "Add", "inputs": ["one.b", "far", "far"]},
        {"name": "two.a", "kind": "Linear", "units": 6, "inputs": ["one.sum"]},
        {"name": "two.b", "kind": "ReLU"},
        {"name": "two.sum", "kind": "Add", "inputs": ["two.b", "one.sum", "far"]},
        {"name": "end", "kind": "ReLU"},
    ]


def test_the_first_block_reads_the_images():
    made = expand_blocks([{"name": "one", "block": "flat"}], {"flat": [{"name": "f", "kind": "Flatten"}]})
    assert made == [{"name": "one.f", "kind": "Flatten", "inputs": ["input"]}]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ({"block": "twise", "units": 1}, texts.UNKNOWN_BLOCK(layer="x", block="twise", hint="did you mean 'twice'?")),
        ({"block": 3, "units": 1}, texts.UNKNOWN_BLOCK(layer="x", block=3, hint="known: twice")),
        (
            {"block": "twice", "units": 1, "unit": 2},
            texts.UNKNOWN_BLOCK_KEY(layer="x", block="twice", key="unit", hint="did you mean 'units'?"),
        ),
        ({"block": "twice"}, texts.BLOCK_KEY_MISSING(layer="x", block="twice", key="units")),
    ],
)
def test_mistakes_are_explained(use, message):
    with pytest.raises(ModelError) as error:
        expand_blocks([{"name": "x", **use}], {"twice": BLOCK})
    assert message in str(error.value)


def test_mistakes_within_a_block_name_the_use():
    text = """
    input = { shape = [4, 4, 1] }
    blocks.bad = [ { name = "f", kind = "Flattten" } ]
    layers = [ { name = "x", block = "bad" } ]
    """
    hint = "did you mean 'Flatten'? known: Add"
    with pytest.raises(ModelError, match=texts.UNKNOWN_KIND.pattern(layer="x.f", kind="Flattten", hint=hint)):
        spec.parse_model(text, "m")
    with pytest.raises(ModelError, match=texts.INPUT_NAMES.pattern(layer="x.f", value=3)):
        spec.parse_model(text.replace('"Flattten"', '"Flatten", inputs = 3'), "m")
    with pytest.raises(ModelError, match=texts.TYPE.pattern(key="bad", type=texts.A_LIST_OF_TABLES, value=3)):
        spec.parse_model(text.replace('[ { name = "f", kind = "Flattten" } ]', "3"), "m")
