"""Blocks: written once, used many times."""

import pytest

from ringtrain.errors import ModelError
from ringtrain.nn import spec
from ringtrain.nn.blocks import expand_blocks
from tests.says import says

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
    # the first layer of a model reads the images
    expanded = expand_blocks([{"name": "one", "block": "flat"}], {"flat": [{"name": "f", "kind": "Flatten"}]})
    assert expanded == [{"name": "one.f", "kind": "Flatten", "inputs": ["input"]}]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ({"block": "twise", "units": 1}, says("'x'", "'twise'", "did you mean 'twice'?")),
        ({"block": 3, "units": 1}, says("'x'", "3", "known: twice")),
        ({"block": "twice", "units": 1, "unit": 2}, says("'x'", "'twice'", "'unit'", "did you mean 'units'?")),
        ({"block": "twice"}, says("'x'", "'twice'", "'units'")),
    ],
)
def test_mistakes_are_explained(use, message):
    with pytest.raises(ModelError, match=message):
        expand_blocks([{"name": "x", **use}], {"twice": BLOCK})


def test_mistakes_within_a_block_name_the_use():
    text = """
    input = { shape = [4, 4, 1] }
    blocks.bad = [ { name = "f", kind = "Flattten" } ]
    layers = [ { name = "x", block = "bad" } ]
    """
    for wrong, words in (
        (text, says("--plugin", "'x.f'", "'Flattten'", "did you mean 'Flatten'? known: Add")),
        (text.replace('"Flattten"', '"Flatten", inputs = 3'), says("'x.f'", "3")),
        (text.replace('[ { name = "f", kind = "Flattten" } ]', "3"), says("blocks.bad is 3")),
    ):
        with pytest.raises(ModelError, match=words):
            spec.parse_model(wrong, "m")
