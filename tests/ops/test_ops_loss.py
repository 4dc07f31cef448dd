"""Softmax and its cross-entropy: what every backend promises of them."""

import numpy as np
import pytest

from tests.ops.cuda_support import BACKENDS

NAN = np.nan


@pytest.fixture(params=BACKENDS)
def ops(request):
    return request.param("float32")


def totals_of(ops, x, labels, **rest):
    x, labels = ops.from_host(np.array(x, np.float32)), ops.from_host(np.array(labels, np.int32))
    totals, dx = ops.from_host(np.zeros(3)), ops.empty(x.shape, "float32")
    ops.softmax_cross_entropy(x, labels, dx, totals, 1.0, **rest)
    return ops.to_host(totals), ops.to_host(dx)


def test_the_first_of_equals_is_the_answer(ops):
    x = np.random.default_rng(0).integers(0, 3, (90, 300))
    assert totals_of(ops, x, x.argmax(axis=1))[0][1] == 90
    assert totals_of(ops, [[-np.inf, -np.inf, 2]], [2])[0].tolist() == [0, 1, 1]
    x = [[1, 2, 2], [1, 2, 2], [NAN, 3, NAN], [NAN, 3, NAN], [0, 3, NAN], [np.inf, 1, np.inf]]
    assert totals_of(ops, x, [1, 2, 0, 2, 1, 0])[0][1:].tolist() == [3, 6]


@pytest.mark.parametrize("label", [5, -2])
def test_a_label_that_is_no_class_makes_the_loss_nan(ops, label):
    for smoothing in (0.0, 0.1):
        totals, dx = totals_of(ops, np.zeros((1, 5)), [label], smoothing=smoothing)
        assert np.isnan(totals[0]) and totals[1:].tolist() == [0, 1] and np.isnan(dx).all()


@pytest.mark.parametrize("index", [0, 3])
def test_nan_gets_through(ops, index):
    x = np.zeros((2, 5))
    x[1, index] = NAN
    totals, dx = totals_of(ops, x, [1, 1])
    assert np.isnan(totals[0]) and np.isnan(dx[1]).all() and np.isfinite(dx[0]).all()


def test_another_label_can_be_ignored(ops):
    totals, dx = totals_of(ops, np.zeros((3, 4)), [2, 9, 1], ignore=9)
    assert np.allclose(totals, [2 * np.log(4), 0, 2]) and dx[1].tolist() == [0] * 4


def test_a_loss_keeps_digits_that_float32_has_not(ops):
    totals, _ = totals_of(ops, [[0, -25]], [0])
    assert totals[0] == pytest.approx(np.log1p(np.exp(-25)), rel=1e-4)
