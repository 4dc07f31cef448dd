"""Softmax and its cross-entropy on the device: beside the reference, and what only it promises."""

import numpy as np
import pytest

from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


def totals_of(ops, x, labels, **rest):
    x, labels = ops.from_host(np.array(x, np.float32)), ops.from_host(np.array(labels, np.int32))
    totals, dx = ops.from_host(np.zeros(3)), ops.empty(x.shape, "float32")
    ops.softmax_cross_entropy(x, labels, dx, totals, 1.0, **rest)
    return ops.to_host(totals), ops.to_host(dx)


def test_the_first_of_equals_is_the_answer():
    x = np.random.default_rng(0).integers(0, 3, (90, 300))
    assert totals_of(cuda_ops(), x, x.argmax(axis=1))[0][1] == 90
    assert totals_of(cuda_ops(), [[-np.inf, -np.inf, 2]], [2])[0].tolist() == [0, 1, 1]


@pytest.mark.parametrize("label", [5, -2])
def test_a_label_that_is_no_class_makes_the_loss_nan(label):
    for smoothing in (0.0, 0.1):
        totals, dx = totals_of(cuda_ops(), np.zeros((1, 5)), [label], smoothing=smoothing)
        assert np.isnan(totals[0]) and totals[1:].tolist() == [0, 1] and np.isnan(dx).all()


@pytest.mark.parametrize("index", [0, 3])
def test_nan_gets_through(index):
    x = np.zeros((2, 5))
    x[1, index] = np.nan
    totals, dx = totals_of(cuda_ops(), x, [1, 1])
    assert np.isnan(totals[0]) and np.isnan(dx[1]).all() and np.isfinite(dx[0]).all()


def test_another_label_can_be_ignored():
    totals, dx = totals_of(cuda_ops(), np.zeros((3, 4)), [2, 9, 1], ignore=9)
    assert np.allclose(totals, [2 * np.log(4), 0, 2]) and dx[1].tolist() == [0] * 4


def test_a_loss_keeps_digits_that_float32_has_not():
    totals, _ = totals_of(cuda_ops(), [[0, -25]], [0])
    assert totals[0] == pytest.approx(np.log1p(np.exp(-25)), rel=1e-4)
