"""Softmax and its cross-entropy on the device: beside the reference, and what only it promises."""

import numpy as np
import pytest

from ringtrain.ops.cuda.loss import Loss
from tests.ops.cases import Call
from tests.ops.cuda_parts import CASES, agree, compare, run_recorded
from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


@pytest.mark.parametrize(("types", "n"), CASES, ids=str)
def test_agrees_with_the_reference(types, n):
    compare(Loss, types, n)


@pytest.mark.parametrize(("rows", "classes"), [(300, 3), (7, 1000), (40, 33), (2, 2500), (3, 1)])
def test_agrees_for_few_and_for_many_classes(rows, classes):
    random = np.random.default_rng(4)
    ops, x = cuda_ops(), random.standard_normal((rows, classes)).astype(np.float32) * 20
    labels = random.integers(-1, classes, rows).astype(np.int32)
    for smoothing in (0.0, 0.1):
        inputs, outputs = {"x_NK": x, "labels_N": labels}, {"dx_NK": x, "totals_3": np.ones(3)}
        agree(ops, Call("softmax_cross_entropy", inputs, outputs, {"scale": 0.7, "smoothing": smoothing}))
    agree(ops, Call("softmax", {"x_NK": x}, {"y_NK": x}))


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


@pytest.mark.parametrize("place", [0, 3])
def test_nan_gets_through(place):
    x = np.zeros((2, 5))
    x[1, place] = np.nan
    totals, dx = totals_of(cuda_ops(), x, [1, 1])
    assert np.isnan(totals[0]) and np.isnan(dx[1]).all() and np.isfinite(dx[0]).all()


def test_another_label_can_be_ignored():
    totals, dx = totals_of(cuda_ops(), np.zeros((3, 4)), [2, 9, 1], ignore=9)
    assert np.allclose(totals, [2 * np.log(4), 0, 2]) and dx[1].tolist() == [0] * 4


def test_a_loss_keeps_digits_that_float32_has_not():
    totals, _ = totals_of(cuda_ops(), [[0, -25]], [0])
    assert totals[0] == pytest.approx(np.log1p(np.exp(-25)), rel=1e-4)


def test_all_of_it_can_be_recorded():
    ops = cuda_ops()
    x, labels = ops.from_host(np.eye(5, dtype=np.float32)), ops.from_host(np.arange(5, dtype=np.int32))
    totals, dx = ops.from_host(np.zeros(3)), ops.empty((5, 5), "float32")

    def run():
        ops.softmax_cross_entropy(x, labels, dx, totals, 1.0)
        ops.softmax(x, dx)

    run_recorded(ops, run)
    assert ops.to_host(totals)[1:].tolist() == [15, 15]  # added to three times
