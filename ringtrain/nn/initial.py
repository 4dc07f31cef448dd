"""Initial weights, from the seed and the parameter's name: the same on every rank and in any order."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.memory.arena import Arena
from ringtrain.nn.base import Fill, Parameter
from ringtrain.ops import elementary
from ringtrain.ops.base import Ops
from ringtrain.ops.keys import additive_key, name_key

BLOCK = 1 << 14  # numbers drawn at a time: arithmetic on them stays in the cache
PER_COUNT = 4  # numbers of a Philox counter

Blocks = Iterator[tuple[int, np.ndarray]]  # (first element, values)


def uniforms(key: int, start: int, stop: int) -> np.ndarray:
    """Return numbers ``start:stop`` of the key's float64 in [0, 1), from the top 53 bits of a Philox counter's output.
    The raw bits of a generator are the same in every release of NumPy; its distributions do not promise that."""
    bits = np.random.Philox(key=key)
    bits.advance(start // PER_COUNT)
    raw = bits.random_raw(start % PER_COUNT + stop - start)[start % PER_COUNT :]
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def normal_blocks(key: int, count: int) -> Blocks:
    """Yield ``count`` standard normal numbers: the second half belongs to the same pairs as the first. Source: Box &
    Muller 1958"""
    half = -(-count // 2)
    for start, stop in _blocks(half):
        radius = np.sqrt(-2 * elementary.log(1 - uniforms(key, start, stop)))
        cos, sin = elementary.cos_and_sin(uniforms(key, half + start, half + stop))
        yield start, radius * cos
        yield half + start, (radius * sin)[: count - half - start]


def _gaussian(deviation: float, key: int, count: int) -> Blocks:
    return ((start, deviation * values) for start, values in normal_blocks(key, count))


def _spread(bound: float, key: int, count: int) -> Blocks:
    return ((start, bound * (2 * uniforms(key, start, stop) - 1)) for start, stop in _blocks(count))


DRAWS: dict[str, Callable[[Fill, int, int], Blocks]] = {
    "constant": lambda fill, key, count: ((i, np.full(stop - i, fill.value)) for i, stop in _blocks(count)),
    "gaussian": lambda fill, key, count: _gaussian(fill.value, key, count),
    "uniform": lambda fill, key, count: _spread(fill.value, key, count),
    # Caffe's: the variance is 1/fan_in. Glorot & Bengio 2010 average fan_in and fan_out.
    "xavier": lambda fill, key, count: _spread(math.sqrt(3 / fill.fan_in), key, count),
    # He et al. 2015, equation 10
    "he": lambda fill, key, count: _gaussian(math.sqrt(2 / fill.fan_in), key, count),
}


def initial(parameter: Parameter, name: str, seed: int, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Return the initial value of a parameter of full name ``name``, drawn in float64. Of one that is some columns the
    whole is drawn, a block at a time."""
    values_of_part = np.empty(int(np.prod(parameter.shape)), dtype)
    key, count = additive_key(seed, name_key(name)), int(np.prod(parameter.whole_shape))
    for start, values in DRAWS[parameter.fill.kind](parameter.fill, key, count):
        parameter.take(values_of_part, start, values)
    return values_of_part.reshape(parameter.shape)


def initialise(arena: Arena, ops: Ops, seed: int) -> None:
    """Fill an arena's weights; padding and gradients become zero."""
    ops.fill(arena.weights, 0)
    ops.fill(arena.grads, 0)
    for span in arena.spans:
        ops.upload(initial(span.parameter, span.name, seed, ops.dtype), arena.weight(span))
