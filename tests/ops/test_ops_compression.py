"""The operations of compression by hand: which elements, in what order; which basis."""

import numpy as np
import pytest

from ringtrain.ops.cpu import CpuOps
from ringtrain.ops.pairs import cut_pairs, pair_bytes
from ringtrain.ops.reference import ReferenceOps


@pytest.fixture(params=[CpuOps, ReferenceOps])
def make(request):
    return request.param


def taken(ops, x, k):
    """(values, indices) of the pairs."""
    pairs = np.zeros(pair_bytes(k, x.itemsize), np.uint8)
    ops.take_largest(x, pairs, k)
    return tuple(each.tolist() for each in cut_pairs(pairs, k, x.dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_go_the_first_of_equals_and_in_order(make, dtype):
    x = np.array([1, -5, 0, 3, -3, 3, -0.0, 1e-30], dtype)
    assert taken(make(dtype), x, 3) == ([-5, 3, -3], [1, 3, 4])
    assert x.tolist() == [1, 0, 0, 0, 0, 3, 0, np.array(1e-30, dtype)]
    assert taken(make(dtype), x, 8)[1] == list(range(8)) and not x.any()


def test_nan_is_larger_than_infinity(make):
    x = np.array([1, np.inf, np.nan, -np.inf, 2], np.float32)
    values, indices = taken(make("float32"), x, 2)
    assert indices == [1, 2] and values[0] == np.inf and np.isnan(values[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_compiled_pairs_are_the_references_bit_by_bit(dtype):
    rng = np.random.default_rng(3)
    kinds = (
        rng.standard_normal(9_999),
        rng.standard_normal(9_999) * 10.0 ** rng.integers(-42, 30, 9_999),
        np.round(rng.standard_normal(9_999)),
        1 + rng.integers(0, 3, 9_999) * np.finfo(dtype).eps,
        np.zeros(9_999),
    )
    for x in (kind.astype(dtype) for kind in kinds):
        for k in (1, 10, 999, 5000, 9_998):
            one, other = x.copy(), x.copy()
            assert taken(CpuOps(dtype), one, k) == taken(ReferenceOps(dtype), other, k)
            assert one.tobytes() == other.tobytes()


def test_pairs_are_added_where_they_belong_and_fill_whole_words(make):
    assert [pair_bytes(k, 4) for k in (0, 1, 3)] == [0, 8, 24] and pair_bytes(1, 8) == 16 and pair_bytes(2, 8) == 24
    ops, x, y = make("float64"), np.array([7.0, 0, -9]), np.ones(3)
    pairs = np.zeros(pair_bytes(2, 8), np.uint8)
    ops.take_largest(x, pairs, 2)
    ops.add_pairs(pairs, y, 2)
    assert y.tolist() == [8, 1, -8]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_columns_are_orthonormal_and_span_what_they_spanned(make, dtype, tolerance):
    """Of columns that are nearly dependent, too: once through Gram-Schmidt would leave them askew."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((300, 1)) + 1e-4 * rng.standard_normal((300, 4))
    x = x.astype(dtype)
    basis = x.copy()
    make(dtype).orthonormalise(basis)
    assert np.abs(basis.T @ basis - np.eye(4)).max() < tolerance
    outside = x - basis @ (basis.T @ x)
    assert np.abs(outside).max() < tolerance * np.abs(x).max()


def test_columns_without_a_direction_are_drawn_alike_everywhere():
    x = np.random.default_rng(1).standard_normal((300, 4))
    x[:, 1], x[:, 3] = 0, 2 * x[:, 0]
    bases = []
    for ops in (CpuOps("float64"), ReferenceOps("float64")):
        basis = x.copy()
        ops.orthonormalise(basis)
        assert np.abs(basis.T @ basis - np.eye(4)).max() < 1e-14
        bases.append(basis)
    np.testing.assert_allclose(*bases, rtol=0, atol=1e-14)


def test_nan_stays(make):
    x = np.ones((3, 2))
    x[0, 0] = np.nan
    make("float64").orthonormalise(x)
    assert np.isnan(x).all()
