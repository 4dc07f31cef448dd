"""Columns at right angles, by modified Gram-Schmidt."""

import numpy as np

from ringtrain.ops import keys
from ringtrain.ops.cpu.kernels.jit import kernel, u

GOLDEN, FIRST, SECOND = np.uint64(keys.GOLDEN), np.uint64(keys.FIRST), np.uint64(keys.SECOND)
NOTHING_LEFT = 16  # roundings: a column of which no more is left has no direction of its own
DRAWN_BITS, DRAWN = np.uint64(64 - keys.DROPOUT_BITS), 1 << keys.DROPOUT_BITS


@kernel
def scramble(state):
    state = (state ^ (state >> np.uint64(30))) * FIRST
    state = (state ^ (state >> np.uint64(27))) * SECOND
    return state ^ (state >> np.uint64(31))


@kernel
def orthonormalise(x):
    """x is [M, R]."""
    least = NOTHING_LEFT * np.finfo(x.dtype).eps
    for r in range(x.shape[1]):
        length = norm(x, r)
        project(x, r)
        if norm(x, r) <= least * length:
            draw(x, r)
            project(x, r)
        project(x, r)
        left = norm(x, r)
        for i in range(x.shape[0]):
            x[u(i), u(r)] /= left


@kernel
def dot(x, r, s):
    total = 0.0
    for i in range(x.shape[0]):
        total += np.float64(x[u(i), u(r)]) * x[u(i), u(s)]
    return total


@kernel
def norm(x, r):
    return np.sqrt(dot(x, r, r))


@kernel
def project(x, r):
    """Take from column r what lies along those before."""
    for s in range(r):
        along = dot(x, s, r)
        for i in range(x.shape[0]):
            x[u(i), u(r)] -= along * x[u(i), u(s)]


@kernel
def draw(x, r):
    """Numbers from -1 to 1, by the arithmetic of ringtrain.ops.keys."""
    row = scramble(scramble(GOLDEN + np.uint64(r)) + GOLDEN)
    for i in range(x.shape[0]):
        bits = scramble(row + GOLDEN + np.uint64(i)) >> DRAWN_BITS
        x[u(i), u(r)] = bits / DRAWN * 2.0 - 1.0
