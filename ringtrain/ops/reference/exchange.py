"""The largest elements, levels of few bits, and factors of low rank; packing of 32 bits to 16, as IEEE half precision
or as bfloat16.

The type of ``packed`` decides: float16, or uint16 for the bits of bfloat16, which NumPy has no type for. Both round to
nearest, ties to even; numbers beyond the range become infinite, and any NaN the type's quiet NaN."""

import numpy as np

from ringtrain.ops import bfloat16, keys
from ringtrain.ops.levels import BLOCK, MOVES, cut_levels, packed_bytes
from ringtrain.ops.pairs import cut_pairs, pair_count
from ringtrain.ops.reference.simple import put, random_bits

QUIET_NAN = np.uint16(0x7E00)
# A column has no direction of its own if no more than this many roundings is left of it.
NOTHING_LEFT = 16


def take_largest(x, pairs, k, chunk=0):
    bits = x.view(f"u{x.dtype.itemsize}") << 1  # without the sign; larger bits are larger numbers, NaN largest
    values, indices = cut_pairs(pairs, pair_count(x.size, k, chunk), x.dtype)
    places = [
        start + np.sort(np.argsort(~part, kind="stable")[: pair_count(part.size, k, chunk)])
        for start in range(0, x.size, chunk or x.size)
        for part in [bits[start : start + (chunk or x.size)]]
    ]
    indices[...] = np.concatenate(places)
    values[...] = x[indices]
    x[indices] = 0


def add_pairs(pairs, y, k):
    values, indices = cut_pairs(pairs, k, y.dtype)
    y[indices] += values


def take_levels(x, levels, bits):
    scales, packed = cut_levels(levels, x.size, bits, x.dtype)
    codes = np.zeros(x.size, np.int32)
    for block, start in enumerate(range(0, x.size, BLOCK)):
        part = slice(start, start + BLOCK)
        codes[part], scales[block :: -(-x.size // BLOCK)] = _codes_of(x[part], bits)
    pack_bits(codes, packed, bits)
    x -= _numbers_of(codes, scales, bits)


def _codes_of(x, bits):
    """Return the codes of a block, and its scales."""
    sizes = np.abs(x)
    if bits <= 2:
        mean = edge = _mean(sizes, np.full(x.size, True))
        if bits == 1:
            return x < 0, [mean]
        for _ in range(1 + MOVES):
            above = sizes > edge
            means = [_mean(sizes, each) for each in (~above, above)]
            edge = (means[0] + means[1]) / x.dtype.type(2)
        return (x < 0) + 2 * above, means
    half = 1 << (bits - 1)
    scale = sizes.max() / x.dtype.type(half - 1) if np.isfinite(x).all() else x.dtype.type(np.nan)
    codes = np.rint(x / scale) if scale > 0 else np.zeros_like(x)
    return np.clip(codes, 1 - half, half - 1) + half, [scale]


def _mean(sizes, among):
    """Return the mean of some of a block, 0 of none: every eighth is added up, then these eight."""
    sums = np.zeros((BLOCK // 8, 8))
    sums.reshape(-1)[: sizes.size] = np.where(among, sizes, 0)
    total = np.cumsum(sums.sum(axis=0))[-1]  # sum() compensates for rounding from Python 3.12 on
    return sizes.dtype.type(total / among.sum() if among.any() else 0)


def _numbers_of(codes, scales, bits):
    """Return the numbers of codes."""
    blocks = -(-codes.size // BLOCK)
    block = np.arange(codes.size) // BLOCK
    if bits <= 2:
        return np.where(codes & 1, -1, 1).astype(scales.dtype) * scales[(codes >> 1) * blocks + block]
    return (codes - (1 << (bits - 1))).astype(scales.dtype) * scales[block]


def add_levels(levels, y, bits):
    scales, packed = cut_levels(levels, y.size, bits, y.dtype)
    codes = np.zeros(y.size, np.int32)
    unpack_bits(packed, codes, bits, y.size)
    y += _numbers_of(codes, scales, bits)


def pack_bits(x, packed, width):
    fields = (x[:, None] >> np.arange(width) & 1).astype(np.uint8)
    packed[: packed_bytes(x.size, width)] = np.packbits(fields, bitorder="little")


def unpack_bits(packed, x, width, k):
    fields = np.unpackbits(packed[: packed_bytes(x.size, width)], count=x.size * width, bitorder="little")
    numbers = fields.reshape(x.size, width).astype(np.int32) << np.arange(width, dtype=np.int32)
    x[...] = numbers.sum(axis=1, dtype=np.int32) + (np.arange(x.size) // k << width)


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
