"""The operations of compression: which elements, in what order; which basis. By hand, and the same on every backend."""

import numpy as np
import pytest

from ringtrain.ops.pairs import cut_pairs, pair_bytes
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cuda_support import BACKENDS, COMPILED


@pytest.fixture(params=BACKENDS)
def make(request):
    return request.param


def taken(ops, x, k):
    """(the pairs as bytes, what is left)"""
    left, pairs = ops.from_host(x), ops.from_host(np.zeros(pair_bytes(k, x.itemsize), np.uint8))
    ops.take_largest(left, pairs, k)
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
