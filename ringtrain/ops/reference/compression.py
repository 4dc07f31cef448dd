"""The largest elements, and factors of low rank."""

import numpy as np

from ringtrain.ops import keys
from ringtrain.ops.pairs import cut_pairs
from ringtrain.ops.reference.simple import put, random_bits

# A column has no direction of its own if no more than this many roundings is left of it.
NOTHING_LEFT = 16


def take_largest(x, pairs, k):
    bits = x.view(f"u{x.dtype.itemsize}") << 1  # without the sign; larger bits are larger numbers, NaN largest
    places = np.sort(np.argsort(~bits, kind="stable")[:k])
    values, indices = cut_pairs(pairs, k, x.dtype)
    values[...], indices[...] = x[places], places
    x[places] = 0


def add_pairs(pairs, y, k):
    values, indices = cut_pairs(pairs, k, y.dtype)
    y[indices] += values


def product(a, b, y, a_transposed=False, b_transposed=False, accumulate=False):
    put((a.T if a_transposed else a) @ (b.T if b_transposed else b), y, accumulate)


def orthonormalise(x_MR):
    whole = x_MR.astype(np.float64)
    least = NOTHING_LEFT * np.finfo(x_MR.dtype).eps
    for r in range(x_MR.shape[1]):
        before, column = whole[:, :r], whole[:, r]
        length = np.linalg.norm(column)
        column -= before @ (before.T @ column)
        if np.linalg.norm(column) <= least * length:
            column[...] = drawn(r, len(column))
            column -= before @ (before.T @ column)
        column -= before @ (before.T @ column)
        column /= np.linalg.norm(column)
    x_MR[...] = whole


def drawn(r, count):
    """Return numbers from -1 to 1, of column r."""
    bits = random_bits(keys.additive_key(r), np.zeros(1, np.int64), count)[0]
    return bits / (1 << keys.DROPOUT_BITS) * 2 - 1
