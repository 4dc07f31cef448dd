"""Initial weights, from the seed and the parameter's name: the same on every rank and in any order."""

import numpy as np

from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops.base import Ops
from ringtrain.ops.keys import additive_key, name_key


def uniforms(key: int, count: int) -> np.ndarray:
    """Return ``count`` float64 in [0, 1), from the top 53 bits of a Philox counter's output. The raw bits of a
    generator are the same in every release of NumPy; its distributions do not promise that.
    """
    raw = np.random.Philox(key=key).random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(key: int, count: int) -> np.ndarray:
    """Return standard normal numbers. Source: Box & Muller 1958"""
    half = -(-count // 2)
    u = uniforms(key, 2 * half)
    radius, angle = np.sqrt(-2 * np.log1p(-u[:half])), 2 * np.pi * u[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _spread(bound: float, key: int, count: int) -> np.ndarray:
    return bound * (2 * uniforms(key, count) - 1)


DRAWS = {
    "constant": lambda fill, key, count: np.full(count, fill.value),
    "gaussian": lambda fill, key, count: fill.value * normals(key, count),
    "uniform": lambda fill, key, count: _spread(fill.value, key, count),
    # Caffe's: the variance is 1/fan_in. Glorot & Bengio 2010 average fan_in and fan_out.
    "xavier": lambda fill, key, count: _spread((3 / fill.fan_in) ** 0.5, key, count),
    # He et al. 2015, equation 10
    "he": lambda fill, key, count: (2 / fill.fan_in) ** 0.5 * normals(key, count),
}


def draw_values(fill: Fill, key: int, count: int) -> np.ndarray:
    """Return ``count`` initial values of a fill."""
    return DRAWS[fill.kind](fill, key, count)


def initial(parameter: Parameter, name: str, seed: int) -> np.ndarray:
    """Return the initial value of a parameter of full name ``name``, in float64."""
    count = int(np.prod(parameter.shape))
    return draw_values(parameter.fill, additive_key(seed, name_key(name)), count).reshape(parameter.shape)


def initialise(arena: Arena, ops: Ops, seed: int) -> None:
    """Fill an arena's weights; padding and gradients become zero."""
    ops.fill(arena.weights, 0)
    ops.fill(arena.grads, 0)
    for span in arena.spans:
        ops.upload(initial(span.parameter, span.name, seed).astype(ops.dtype), arena.weight(span))
