"""Metrics against what they are by definition, written down for few examples."""

import numpy as np
import pytest

from ringtrain.nn.losses import LabelForm, SoftmaxCrossEntropy
from ringtrain.nn.metrics import MOST_CONFUSED, BinaryMetrics, ClassMetrics, ValueMetrics


def measured(metrics, outputs, labels, cuts=(2,), loss=np.nan):
    """(metrics, counts by class) of examples that come in two parts."""
    sums, counts = np.zeros(metrics.sums), np.zeros(metrics.counts, np.int64)
    for x, y in zip(np.split(outputs, cuts), np.split(labels, cuts), strict=True):
        metrics.add(x, y, sums, counts)
    valid = int(np.count_nonzero(labels != -1)) if labels.dtype.kind == "i" else labels.size
    return metrics.read(valid, sums, counts, loss), metrics.classes(counts)


def one_hot(classes, count):
    return np.eye(count)[np.array(classes)]


def test_top_5_counts_the_first_of_equal_outputs():
    outputs = np.array([[9, 8, 7, 6, 5, 4, 3], [9, 8, 7, 6, 5, 4, 3], [0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0.0]])
    values, classes = measured(ClassMetrics(7, dense=False, whole=True), outputs, np.array([4, 5, 4, 5], np.int32))
    assert values == {"top5_accuracy": 0.5} and classes is None
    assert ClassMetrics(5, dense=False, whole=True).names == ClassMetrics(99, dense=False).names == ()
    assert ClassMetrics(100, dense=False).names == ("top5_accuracy",)


def test_classes_and_their_confusion():
    labels, predicted = np.array([0, 0, 1, 1, 1, -1, 2], np.int32), [0, 1, 1, 1, 0, 2, 0]
    _, classes = measured(ClassMetrics(4, dense=False, by_class=True), one_hot(predicted, 4), labels)
    np.testing.assert_array_equal(classes.confusion, [[1, 1, 0, 0], [1, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(classes.precision, [1 / 3, 2 / 3, np.nan, np.nan])
    np.testing.assert_allclose(classes.recall, [1 / 2, 2 / 3, 0, np.nan])
    np.testing.assert_allclose(classes.f1, [2 / 5, 2 / 3, 0, np.nan])
    np.testing.assert_allclose(classes.iou, [1 / 4, 1 / 2, 0, np.nan])


def test_mean_iou_leaves_out_classes_that_are_nowhere():
    labels = np.array([[[0, 1], [1, -1]], [[2, 2], [0, 1]]], np.int32)
    predicted = np.array([[[0, 1], [0, 3]], [[2, 0], [0, 1]]])
    for by_class in (False, True):
        values, classes = measured(
            ClassMetrics(5, dense=True, by_class=by_class), one_hot(predicted, 5), labels, cuts=(1,)
        )
        assert values == {"mean_iou": pytest.approx((2 / 4 + 2 / 3 + 1 / 2) / 3)}
        assert (classes.confusion is not None) == by_class


def test_many_classes_have_counts_and_no_matrix():
    count = MOST_CONFUSED + 1
    labels, outputs = np.array([5, count - 1], np.int32), one_hot([5, 7], count)
    _, classes = measured(ClassMetrics(count, dense=False, by_class=True), outputs, labels, cuts=(1,))
    assert classes.confusion is None and np.flatnonzero(classes.hits).tolist() == [5]
    assert np.flatnonzero(classes.labelled).tolist() == [5, count - 1]


def test_f1_of_labels_that_do_not_exclude_one_another():
    labels = np.array([[1, 0], [1, 1], [-1, 0], [0, 1]], np.int32)
    outputs = np.array([[2.0, 1], [-1, 3], [5, -1], [0.5, -2]])
    values, classes = measured(BinaryMetrics(2), outputs, labels)
    assert classes.hits.tolist() == [1, 1] and classes.labelled.tolist() == [2, 2]
    assert classes.predicted.tolist() == [2, 2] and values == {"f1": 0.5}
    nothing, _ = measured(BinaryMetrics(1), np.array([-1.0, -2, -3]), np.zeros(3))
    assert nothing == {"f1": None}


def test_values_of_ones_own_arithmetic():
    labels, outputs = np.array([1.0, 2, 3, 6], np.float32), np.array([[1.0], [3], [3], [4]])
    values, _ = measured(ValueMetrics(), outputs, labels)
    assert values == pytest.approx({"rmse": (5 / 4) ** 0.5, "mae": 3 / 4, "r2": 1 - 5 / 14})
    constant, _ = measured(ValueMetrics(), outputs, np.full(4, 2.0))
    assert constant["r2"] is None
    numbers, _ = measured(ValueMetrics(), outputs, np.array([1, -1, 3, 6], np.int32))
    assert numbers["mae"] == pytest.approx(2 / 3)


def test_labels_by_place_have_a_perplexity():
    metrics = SoftmaxCrossEntropy().metrics((12, 256), LabelForm((12,)))
    assert metrics.names == ("perplexity",) and metrics.sums == metrics.counts == 0
    read = [metrics.read(24, np.zeros(0), np.zeros(0, np.int64), loss) for loss in (np.log(7.5), 1e4)]
    assert read == [{"perplexity": pytest.approx(7.5, rel=1e-12)}, {"perplexity": None}]
    assert SoftmaxCrossEntropy().metrics((4, 4, 3), LabelForm((4, 4))).names == ("mean_iou",)
