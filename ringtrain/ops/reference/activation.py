"""Activations: value and slope of each kind of :data:`ringtrain.ops.base.ACTIVATIONS`."""

import math
from collections.abc import Callable

import numpy as np

ROOT, CUBE = math.sqrt(2 / math.pi), 0.044715  # Hendrycks & Gimpel 2016, section 2


def activation(kind, x_N, y_N):
    y_N[...] = VALUES[kind](x_N)


def activation_back(kind, x_N, y_N, dy_N, dx_N):
    dx_N[...] = dy_N * SLOPES[kind](x_N, y_N)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _below(x):
    """The standard normal distribution."""
    return (0.5 * np.vectorize(math.erfc, otypes=[float])(x.astype(np.float64) / -math.sqrt(2))).astype(x.dtype)


def _density(x):
    return np.exp(-0.5 * x * x) * x.dtype.type(1 / math.sqrt(2 * math.pi))


def _approximate_below(x):
    """The standard normal distribution, by tanh."""
    return 0.5 * (1 + np.tanh(ROOT * (x + CUBE * x**3)))


def _gelu_tanh_slope(x, y):
    share = _approximate_below(x)
    return share + 2 * x * share * (1 - share) * ROOT * (1 + 3 * CUBE * x * x)


VALUES: dict[str, Callable[..., np.ndarray]] = {
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * _below(x),
    "gelu_tanh": lambda x: x * _approximate_below(x),
}
SLOPES: dict[str, Callable[..., np.ndarray]] = {
    "sigmoid": lambda x, y: y * (1 - y),
    "tanh": lambda x, y: 1 - y * y,
    "silu": lambda x, y: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "gelu": lambda x, y: _below(x) + x * _density(x),
    "gelu_tanh": _gelu_tanh_slope,
}
