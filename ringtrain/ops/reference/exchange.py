"""The largest elements, and factors of low rank; packing of 32 bits to 16, as IEEE half precision or as bfloat16.

The type of ``packed`` decides: float16, or uint16 for the bits of bfloat16, which NumPy has no type for. Both round to
nearest, ties to even; numbers beyond the range become infinite, and any NaN the type's quiet NaN."""

import numpy as np

from ringtrain.ops import bfloat16, keys
from ringtrain.ops.pairs import cut_pairs
from ringtrain.ops.reference.simple import put, random_bits

QUIET_NAN = np.uint16(0x7E00)
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


def pack(x, packed):
    if packed.dtype == np.float16:
        packed[...] = np.where(np.isnan(x), QUIET_NAN.view(np.float16), x.astype(np.float16))
    else:
        packed[...] = bfloat16.encode(x)


def unpack(packed, x, accumulate=False):
    put(packed.astype(np.float32) if packed.dtype == np.float16 else bfloat16.decode(packed), x, accumulate)
