"""Matrix products on the CPU: every edge of blocks, panels and strips, NaN kept, the same bits for any threads."""

import itertools

import numpy as np
import pytest

from ringtrain.ops.cpu import CpuOps
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import linear_calls
from tests.ops.test_ops_cpu_layers import Misaligned, assert_same_bits

TOLERANCE = {"float32": 5e-6, "float64": 1e-13}
# Rows, columns, and elements of a sum: around vectors, strips, panels, and blocks of 256.
SIZES = [(1, 1, 1), (1, 40, 300), (7, 17, 5), (6, 16, 256), (13, 31, 257), (33, 100, 70), (100, 10, 513), (260, 50, 40)]
LARGE = [(64, 300, 600), (600, 70, 64), (70, 600, 64), (300, 64, 520)]
TURNS = list(itertools.product((False, True), repeat=2))


def operands(dtype, m, n, k, turned):
    """a, b, and what is in c before."""
    rng = np.random.default_rng(m + n + k)
    shapes = (m, k), (k, n), (m, n)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return *(np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True)), c


def product(ops, a, b, c, turned, accumulate=False):
    y = c.copy()
    ops.product(a, b, y, *turned, accumulate)
    return y


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("turned", TURNS)
def test_products_of_all_sizes_agree_with_the_reference(dtype, turned):
    ops, reference = CpuOps(dtype), ReferenceOps("float64")
    for size, accumulate in itertools.product(SIZES + LARGE, (False, True)):
        a, b, c = operands(dtype, *size, turned)
        wanted = product(reference, *(x.astype(np.float64) for x in (a, b, c)), turned, accumulate)
        off = np.abs(product(ops, a, b, c, turned, accumulate) - wanted).max()
        assert off <= TOLERANCE[dtype] * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "d", "k"), [(64, 300, 530), (5, 40, 17), (33, 270, 10), (300, 90, 100), (0, 30, 20)])
def test_layers_have_the_same_bits_for_any_threads_and_at_any_place(dtype, n, d, k):
    several = CpuOps(dtype, 1), Misaligned(dtype, 1), CpuOps(dtype, 2), Misaligned(dtype, 3, threads=3)
    assert_same_bits(several, linear_calls(dtype, n, d, k))


def test_rows_have_the_same_bits_whatever_rows_are_beside():
    ops, rng = CpuOps("float32"), np.random.default_rng(2)
    x, w = rng.standard_normal((50, 600)).astype("f4"), rng.standard_normal((600, 70)).astype("f4")
    wT, whole = np.ascontiguousarray(w.T), product(ops, x, w, np.empty((50, 70), "f4"), (False, False))
    for first, end in ((0, 1), (3, 9), (10, 50)):
        for b, turned in ((w, False), (wT, True)):
            part = product(ops, x[first:end], b, np.empty((end - first, 70), "f4"), (False, turned))
            assert part.tobytes() == whole[first:end].tobytes()


@pytest.mark.parametrize("turned", TURNS)
def test_nan_and_infinity_reach_their_row_and_column_alone(turned):
    ops = CpuOps("float32")
    for m, n, k in ((40, 70, 300), (5, 10, 20), (40, 70, 8)):
        a, b, c = operands("float32", m, n, k, turned)
        (a.T if turned[0] else a)[3, 4], (b.T if turned[1] else b)[5, 6] = np.nan, np.inf
        y = product(ops, a, b, c, turned)
        wrong = np.zeros((m, n), bool)
        wrong[3], wrong[:, 6] = True, True
        assert (np.isfinite(y) != wrong).all() and np.isnan(y[3]).all()


def test_relu_lets_nan_through_and_gradients_of_it_do_not():
    ops, bias = CpuOps("float32"), np.array([0, 0, -np.inf] * 11, np.float32)
    x, w, y = np.ones((4, 8), np.float32), np.ones((8, 33), np.float32), np.empty((4, 33), np.float32)
    x[1, 2] = np.nan
    ops.linear(x, w, bias, y, relu=True)
    assert np.isnan(y[1]).all() and np.isnan(y).sum() == 33 and not np.signbit(y[0]).any()
    dy, dw, db = np.ones_like(y), np.empty_like(w), np.empty_like(bias)
    ops.linear_back(x, w, y, dy, dw, db, None, relu=True)
    assert not dy[1].any() and db.tolist() == [3, 3, 0] * 11
