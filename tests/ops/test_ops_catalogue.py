"""Names of implementations, precisions, keys of random numbers, and the sizes that geometry gives."""

import sys

import numpy as np
import pytest

from ringtrain.errors import ConfigError, nearest
from ringtrain.ops import keys
from ringtrain.ops.base import ConvGeometry, PoolGeometry
from ringtrain.ops.catalogue import OPS, make_ops
from ringtrain.ops.precision import PRECISIONS, active_dtype
from tests.says import says


def test_each_name_makes_its_operations():
    for name in OPS:
        ops = make_ops(name, "float64")
        assert (ops.name, ops.dtype) == (name, "float64")


def test_unknown_names_and_types_are_explained():
    with pytest.raises(ConfigError, match=says("'cup'", "did you mean 'cpu'? known: cpu, reference")):
        make_ops("cup")
    with pytest.raises(ConfigError, match=says("'cpu'", "'float16'")):
        make_ops("cpu", "float16")


def test_activations_are_as_precise_as_it_says_or_the_precision_is_refused():
    assert active_dtype("float32", "float64") == np.float64
    assert active_dtype("tf32", "float32") == np.float32
    assert active_dtype("float16", "float32") == np.float16
    with pytest.raises(ConfigError, match=says("'bf16'", nearest("bf16", PRECISIONS))):
        active_dtype("bf16", "float32")
    with pytest.raises(ConfigError, match=says("--precision", "--dtype", "tf32", "float64")):
        active_dtype("tf32", "float64")


def test_bfloat16_is_that_of_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ConfigError, match=says("--precision")):
        active_dtype("bfloat16", "float32")
    monkeypatch.undo()
    assert active_dtype("bfloat16", "float32").name == "bfloat16"


def test_mix_is_splitmix64():
    # The published first outputs of splitmix64 from seed 0 and from 1234567.
    assert keys.additive_key(0) == 0xE220A8397B1DCDAF
    assert keys.additive_key(1234567) == 6457827717110365317


def test_keys_depend_on_every_number_and_their_order():
    drawn = [keys.additive_key(*numbers) for numbers in ((), (0,), (1,), (1, 2), (2, 1), (1, 2, 0), (-1,), (0, 0))]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= key < 2**64 for key in drawn)
    assert keys.additive_key(-1) == keys.additive_key(2**64 - 1)


def test_name_keys_are_those_of_sha256():
    assert keys.name_key("") == int.from_bytes(bytes.fromhex("e3b0c44298fc1c14"), "little")
    assert keys.name_key("conv1.weight") != keys.name_key("conv1.bias")


@pytest.mark.parametrize(
    ("geometry", "size", "wanted"),
    [
        (PoolGeometry(3, 2, 0, True), 32, 16),  # cifar10_quick, all three pools
        (PoolGeometry(3, 2, 0, True), 16, 8),
        (PoolGeometry(3, 2, 0, False), 32, 15),
        (PoolGeometry(2, 2), 24, 12),  # lenet
        (PoolGeometry(3, 2, 1, True), 7, 4),
        (PoolGeometry(3, 2, 1, True), 6, 4),
        (PoolGeometry(2, 2, 1, True), 3, 2),  # the third window would start behind the image
        (PoolGeometry(1, 3, 0, True), 8, 3),
        (PoolGeometry(1, 3, 0, True), 9, 3),  # the fourth would start behind the image
        (ConvGeometry(5, 1, 2), 32, 32),
        (ConvGeometry(5), 28, 24),
        (ConvGeometry(3, 2, 1), 32, 16),
        (ConvGeometry(3, 2, 1), 7, 4),
    ],
)
def test_output_sizes(geometry, size, wanted):
    assert geometry.output(size) == wanted
