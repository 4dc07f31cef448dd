"""The operations of compression: which elements, also of a chunk, in what order; numbers in few bits; which basis. By
hand, and the same on every backend."""

import numpy as np
import pytest

from ringtrain.ops.levels import cut_levels, level_bytes, packed_bytes
from ringtrain.ops.pairs import cut_pairs, pair_bytes, pair_count
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cuda_support import BACKENDS, COMPILED, cuda_ops


@pytest.fixture(params=BACKENDS)
def make(request):
    return request.param


def taken(ops, x, k, chunk=0):
    """(the pairs as bytes, what is left)"""
    nbytes = pair_bytes(pair_count(x.size, k, chunk), x.itemsize)
    left, pairs = ops.from_host(x), ops.from_host(np.zeros(nbytes, np.uint8))
    ops.take_largest(left, pairs, k, chunk)
    return ops.to_host(pairs), ops.to_host(left)


def orthonormalised(ops, x):
    basis = ops.from_host(x)
    ops.orthonormalise(basis)
    return ops.to_host(basis)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_go_the_first_of_equals_and_in_order(make, dtype):
    x = np.array([1, -5, 0, 3, -3, 3, -0.0, 1e-30], dtype)
    pairs, left = taken(make(dtype), x, 3)
    assert [each.tolist() for each in cut_pairs(pairs, 3, x.dtype)] == [[-5, 3, -3], [1, 3, 4]]
    assert left.tolist() == [1, 0, 0, 0, 0, 3, 0, np.array(1e-30, dtype)]
    pairs, left = taken(make(dtype), x, 8)
    assert cut_pairs(pairs, 8, x.dtype)[1].tolist() == list(range(8)) and not left.any()


def test_nan_is_larger_than_infinity(make):
    x = np.array([1, np.inf, np.nan, -np.inf, 2], np.float32)
    values, indices = cut_pairs(taken(make("float32"), x, 2)[0], 2, x.dtype)
    assert indices.tolist() == [1, 2] and values[0] == np.inf and np.isnan(values[1])


def awkward(dtype):
    """Over several blocks: many zeros of both signs, ties everywhere, subnormals, infinities and NaN."""
    random = np.random.default_rng(6)
    x = np.round(random.standard_normal(40_000) * 4).astype(dtype)
    x[::7] = random.standard_normal(len(x[::7]))
    x[[3, 9_000, 21_000]], x[[5, 30_000]] = np.inf, -np.inf
    x[[11_111, 39_999]], x[17] = np.nan, np.copysign(np.nan, -1)
    x[1000:1100] = np.copysign(np.finfo(dtype).tiny / 8, -1)
    return x


@pytest.mark.parametrize("make", COMPILED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_compiled_pairs_are_the_references_bit_by_bit(make, dtype):
    rng, ops, reference = np.random.default_rng(3), make(dtype), ReferenceOps(dtype)
    kinds = (
        rng.standard_normal(9_999),
        rng.standard_normal(9_999) * 10.0 ** rng.integers(-42, 30, 9_999),
        np.round(rng.standard_normal(9_999)),
        1 + rng.integers(0, 3, 9_999) * np.finfo(dtype).eps,
        np.zeros(9_999),
        np.full(9_999, 2.5),
    )
    cases = [(kind.astype(dtype), k) for kind in kinds for k in (1, 10, 999, 5000, 9_998)]
    cases += [(awkward(dtype), k) for k in (1, 2, 4, 8, 5000, 25_000, 39_999, 40_000)]
    for x, k in cases:
        for got, wanted in zip(taken(ops, x, k), taken(reference, x, k), strict=True):
            assert got.tobytes() == wanted.tobytes(), k


def test_pairs_are_added_where_they_belong_and_fill_whole_words(make):
    assert [pair_bytes(k, 4) for k in (0, 1, 3)] == [0, 8, 24] and pair_bytes(1, 8) == 16 and pair_bytes(2, 8) == 24
    ops = make("float64")
    y = ops.from_host(np.ones(3))
    ops.add_pairs(ops.from_host(taken(ops, np.array([7.0, 0, -9]), 2)[0]), y, 2)
    assert ops.to_host(y).tolist() == [8, 1, -8]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_columns_are_orthonormal_and_span_what_they_spanned(make, dtype, tolerance):
    """Of columns that are nearly dependent, too: once through Gram-Schmidt would leave them askew."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((300, 1)) + 1e-4 * rng.standard_normal((300, 4))
    x = x.astype(dtype)
    basis = orthonormalised(make(dtype), x).astype(np.float64)
    assert np.abs(basis.T @ basis - np.eye(4)).max() < tolerance
    outside = x - basis @ (basis.T @ x)
    assert np.abs(outside).max() < tolerance * np.abs(x).max()


@pytest.mark.parametrize(("dtype", "angles", "tolerance"), [("float32", 1e-6, 1e-5), ("float64", 1e-14, 1e-14)])
def test_columns_without_a_direction_are_drawn_alike_everywhere(make, dtype, angles, tolerance):
    x = np.random.default_rng(1).standard_normal((300, 7)).astype(dtype)
    x[:, 1], x[:, 3], x[:, 6] = 0, 2 * x[:, 0], 2 * x[:, 2] - x[:, 0]
    basis = orthonormalised(make(dtype), x).astype(np.float64)
    assert np.abs(basis.T @ basis - np.eye(7)).max() < angles
    np.testing.assert_allclose(basis, orthonormalised(ReferenceOps(dtype), x), rtol=0, atol=tolerance)


def test_nan_stays(make):
    x = np.ones((3, 2))
    x[0, 0] = np.nan
    assert np.isnan(orthonormalised(make("float64"), x)).all()


# ── levels ───────────────────────────────────────────────────────────────────────────────────────────────────────
def levels_of(ops, x, bits):
    """(levels, what is left, what the levels are)"""
    left, levels = ops.from_host(x), ops.from_host(np.zeros(level_bytes(x.size, bits, x.itemsize), np.uint8))
    ops.take_levels(left, levels, bits)
    numbers = ops.from_host(np.zeros_like(x))
    ops.add_levels(levels, numbers, bits)
    return ops.to_host(levels), ops.to_host(left), ops.to_host(numbers)


@pytest.mark.parametrize(
    ("bits", "scales", "numbers"),
    [
        (1, [3], [3, -3, 3, 3]),
        (2, [1.5, 7.5], [1.5, -7.5, 1.5, 1.5]),
        (3, [2.5], [2.5, -7.5, 0, 2.5]),
        (8, [7.5 / 127], [7.5 / 127 * each for each in (34, -127, 0, 42)]),
    ],
)
def test_levels_by_hand(make, bits, scales, numbers):
    """Of 2, -7.5, 0 and 2.5: a mean of 3."""
    levels, left, whole = levels_of(make("float64"), np.array([2, -7.5, 0, 2.5]), bits)
    assert cut_levels(levels, 4, bits, "float64")[0].tolist() == scales
    np.testing.assert_allclose(whole, numbers, rtol=1e-15)
    np.testing.assert_array_equal(left, np.array([2, -7.5, 0, 2.5]) - whole)


def test_ties_go_to_even_and_codes_fill_bytes_from_their_lowest_bits(make):
    levels, _, whole = levels_of(make("float32"), np.array([7, 0.5, 1.5, -2.5, -0.5], np.float32), 4)
    assert whole.tolist() == [7, 0, 2, -2, 0]
    assert cut_levels(levels, 5, 4, "float32")[1].tolist() == [8 << 4 | 15, 6 << 4 | 10, 8]


def test_scales_are_of_blocks_and_bytes_are_counted(make):
    """Each block of 256 is exact with scales of its own."""
    x = np.repeat(np.array([3, -5e4, 7e-6]), [256, 256, 100]).astype(np.float32)
    for bits in (1, 2, 4):
        np.testing.assert_allclose(levels_of(make("float32"), x, bits)[2], x, rtol=1e-6)
    assert [level_bytes(612, bits, 4) for bits in (8, 4, 2, 1)] == [624, 320, 184, 96]  # 12, 24 bytes of scales
    assert [packed_bytes(41, width) for width in (12, 0)] == [62, 0]


def test_zeros_and_the_smallest_numbers_stay_and_what_is_not_finite_spoils_its_block(make):
    smallest = np.finfo(np.float32).tiny if make is cuda_ops else 1e-45  # a device takes smaller ones for 0
    for bits in (1, 2, 4, 8):
        tiny = np.zeros(5, np.float32)
        tiny[3] = smallest
        _, left, whole = levels_of(make("float32"), tiny, bits)
        np.testing.assert_array_equal(left + whole, tiny)
        for wrong in (np.nan, np.inf):
            x = np.ones(300, np.float32)
            x[7] = wrong
            _, _, whole = levels_of(make("float32"), x, bits)
            assert not np.isfinite(whole[:256]).any() and (whole[256:] == 1).all(), (bits, wrong)


@pytest.mark.parametrize("make", COMPILED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_levels_are_the_references_bit_by_bit(make, dtype):
    rng, ops, reference = np.random.default_rng(5), make(dtype), ReferenceOps(dtype)
    smallest = -30 if make is cuda_ops else -40  # a device takes what is below 1e-38 for 0
    kinds = (
        rng.standard_normal(5_000),
        rng.standard_normal(5_000) * 10.0 ** rng.integers(smallest, 30, 5_000),
        np.round(3 * rng.standard_normal(5_000)) / 2,
        rng.standard_normal(257),
    )
    for x in (kind.astype(dtype) for kind in kinds):
        for bits in range(1, 9):
            for got, wanted in zip(levels_of(ops, x, bits), levels_of(reference, x, bits), strict=True):
                assert got.tobytes() == wanted.tobytes(), bits


def test_two_bits_lose_less_than_even_levels_do_and_less_of_the_largest():
    """Of normal numbers, and of those above 2."""
    x = np.random.default_rng(1).standard_normal(51_200)
    ops = ReferenceOps("float64")
    for numbers, most in ((x, 0.119), (x[np.abs(x) > 2], 0.0076)):
        left = levels_of(ops, numbers, 2)[1]
        assert (left**2).sum() / (numbers**2).sum() < most


@pytest.mark.parametrize("width", [0, 1, 7, 12, 31])
def test_whole_numbers_in_few_bits_come_back(make, width):
    ops, x = make("float32"), np.random.default_rng(width).integers(0, 1 << width, 99).astype(np.int32)
    packed, back = ops.from_host(np.zeros(packed_bytes(99, width), np.uint8)), ops.from_host(np.zeros_like(x))
    ops.pack_bits(ops.from_host(x), packed, width)
    ops.unpack_bits(packed, back, width, 99)
    assert ops.to_host(back).tolist() == x.tolist()


def test_the_largest_of_each_chunk_go_and_indices_find_their_chunk(make):
    x = np.array([1, -5, 3, 3, 0, 0, 9, -8, 2, 7], np.float32)
    ops, count = make("float32"), pair_count(10, 2, 4)
    assert count == 5 and [pair_count(n, 41, 4096) for n in (1, 100, 4096, 5000)] == [1, 2, 41, 51]
    pairs, left = taken(ops, x, 2, 4)
    values, indices = cut_pairs(pairs, count, "float32")
    assert (indices.tolist(), values.tolist()) == ([1, 2, 6, 7, 9], [-5, 3, 9, -8, 7])
    assert left.tolist() == [1, 0, 0, 3, 0, 0, 0, 0, 2, 0]
    packed, back = ops.from_host(np.zeros(packed_bytes(5, 2), np.uint8)), ops.from_host(np.zeros(5, np.int32))
    ops.pack_bits(ops.from_host(indices.copy()), packed, 2)
    ops.unpack_bits(packed, back, 2, 2)
    assert ops.to_host(back).tolist() == [1, 2, 6, 7, 9]


@pytest.mark.parametrize("make", COMPILED)
def test_compiled_chunks_are_the_references_bit_by_bit(make):
    rng, ops, reference = np.random.default_rng(3), make("float32"), ReferenceOps("float32")
    for x in (rng.standard_normal(9_999), np.round(rng.standard_normal(9_999))):
        for k, chunk in ((41, 4096), (1, 64), (64, 64), (500, 16_384)):
            for got, wanted in zip(*(taken(each, x.astype("f4"), k, chunk) for each in (ops, reference)), strict=True):
                assert got.tobytes() == wanted.tobytes(), (k, chunk)
