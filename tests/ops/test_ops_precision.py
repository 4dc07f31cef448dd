"""What a precision makes of activations, and which are refused."""

import sys

import numpy as np
import pytest

from ringtrain.errors import ConfigError, nearest
from ringtrain.ops.precision import PRECISIONS, active_dtype
from tests.says import says


def test_activations_are_as_precise_as_it_says():
    assert active_dtype("float32", "float64") == np.float64
    assert active_dtype("tf32", "float32") == np.float32
    assert active_dtype("float16", "float32") == np.float16


def test_bfloat16_is_that_of_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ConfigError, match=says("--precision")):
        active_dtype("bfloat16", "float32")
    monkeypatch.undo()
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    assert active_dtype("bfloat16", "float32").name == "bfloat16"


def test_what_is_refused():
    with pytest.raises(ConfigError, match=says("'bf16'", nearest("bf16", PRECISIONS))):
        active_dtype("bf16", "float32")
    with pytest.raises(ConfigError, match=says("--precision", "--dtype", "tf32", "float64")):
        active_dtype("tf32", "float64")
