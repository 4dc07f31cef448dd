"""The values of ``--precision``: the type of activations, and the arithmetic of float32 products."""

from typing import NamedTuple

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import ConfigError, nearest

PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")  # activations and their gradients take 16 bits


class RoundedWeights(NamedTuple):
    """Weights, and these in the type of activations, as products take them."""

    weights: Array
    rounded: Array

    @property
    def shape(self):
        return self.weights.shape


def active_dtype(precision: str, dtype) -> np.dtype:
    """Return the type of activations and their gradients for weights of ``dtype``.

    Raises: ConfigError for an unknown name, for float64 weights with a lower precision, for bfloat16 if ml_dtypes,
    which provides NumPy's type, is not installed"""
    dtype = np.dtype(dtype)
    if precision not in PRECISIONS:
        raise ConfigError(f"unknown precision {precision!r}; {nearest(precision, PRECISIONS)}")
    if dtype != np.float32 and precision != "float32":
        raise ConfigError(
            f"--precision {precision} with --dtype {dtype}: --precision is for float32 weights, and {dtype} is for "
            "checks; leave one of them out"
        )
    if precision != "bfloat16":
        return np.dtype(np.float16) if precision == "float16" else dtype
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise ConfigError("--precision bfloat16 wants the package ml_dtypes: pip install ml_dtypes") from None
    return np.dtype(bfloat16)
