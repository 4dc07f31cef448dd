"""The largest elements and orthonormal columns on the device: the same elements, and columns at right angles."""

import numpy as np
import pytest

from ringtrain.ops.pairs import cut_pairs, pair_bytes
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


def taken(ops, x, k):
    """(values and indices, what is left) as bytes."""
    array, pairs = ops.from_host(x), ops.from_host(np.zeros(pair_bytes(k, x.itemsize), np.uint8))
    ops.take_largest(array, pairs, k)
    return ops.to_host(pairs).tobytes(), ops.to_host(array).tobytes()


def awkward(dtype):
    """Over several blocks: many zeros of both signs, ties everywhere, subnormals, infinities and NaN."""
    random = np.random.default_rng(6)
    x = np.round(random.standard_normal(40_000) * 4).astype(dtype)
    x[::7] = random.standard_normal(len(x[::7]))
    x[[3, 9_000, 21_000]], x[[5, 30_000]] = np.inf, -np.inf
    x[[11_111, 39_999]], x[17] = np.nan, np.copysign(np.nan, -1)
    x[1000:1100] = np.copysign(np.finfo(dtype).tiny / 8, -1)
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_elements_bit_for_bit(dtype):
    ops, x = cuda_ops(dtype), awkward(dtype)
    for k in (1, 2, 4, 8, 5000, 25_000, len(x) - 1, len(x)):
        assert taken(ops, x, k) == taken(ReferenceOps(dtype), x, k), k


def test_of_equals_the_first():
    ops, x = cuda_ops(), np.zeros(10_000, np.float32)
    for values in (0, 2.5):
        x[:] = values
        pairs, left = taken(ops, x, 3000)
        _, indices = cut_pairs(np.frombuffer(pairs, np.uint8), 3000, x.dtype)
        assert indices.tolist() == list(range(3000))
        assert np.frombuffer(left, np.float32).tolist() == [0] * 3000 + [values] * 7000


def test_columns_are_at_right_angles():
    random, ops = np.random.default_rng(8), cuda_ops()
    x = random.standard_normal((300, 7)).astype(np.float32)
    x[:, 3], x[:, 6] = 2 * x[:, 1] - x[:, 0], 0  # within the span of others; nothing
    array, expected = ops.from_host(x), x.copy()
    ops.orthonormalise(array)
    ReferenceOps("float32").orthonormalise(expected)
    got = ops.to_host(array).astype(np.float64)
    assert np.abs(got.T @ got - np.eye(7)).max() < 1e-6
    assert np.abs(got - expected).max() < 1e-5
