"""The loss, and what it asks of a network's output."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from nn_support import TOLERANCE, make_pass, reference, slope

from ringtrain.config.record import ModelConfig
from ringtrain.errors import ConfigError, ModelError
from ringtrain.nn.losses import (
    LOSSES,
    ONE_CLASS_NUMBER,
    BinaryCrossEntropy,
    HuberLoss,
    LabelForm,
    MeanAbsoluteError,
    MeanSquaredError,
    SoftmaxCrossEntropy,
    make_loss,
)
from tests.says import says

OPS = reference()
LABELS = np.array([0, 3, -1, 2, 3], np.int32)  # one is ignored
X = np.random.default_rng(2).standard_normal((5, 4))


def evaluate(loss, x, labels=LABELS):
    totals = OPS.zeros((3,), "float64")
    loss.forward(make_pass(OPS, len(x), training=False), OPS.from_host(x), OPS.from_host(labels), totals)
    return OPS.to_host(totals)


def gradient(loss, x, denominator, labels=LABELS):
    totals = OPS.zeros((3,), "float64")
    dx = loss.backward(make_pass(OPS, len(x)), OPS.from_host(x), OPS.from_host(labels), totals, denominator)
    return OPS.to_host(totals), OPS.to_host(dx)


DENSE = np.random.default_rng(4).standard_normal((2, 3, 2, 4))  # of four classes each
VALUES = np.random.default_rng(5).uniform(0.1, 0.9, (4, 3))
OF_EACH = {
    "ce": (SoftmaxCrossEntropy(), X, LABELS),
    "smoothed ce": (SoftmaxCrossEntropy(0.1), X, LABELS),
    "dense ce": (SoftmaxCrossEntropy(), DENSE, np.resize(np.array([0, 3, -1, 2, 1], np.int32), (2, 3, 2))),
    "mse": (MeanSquaredError(), X[:4, :3], VALUES),
    "mae": (MeanAbsoluteError(), X[:4, :3], VALUES),
    "huber": (HuberLoss(0.7), X[:4, :3], VALUES),
    "bce": (BinaryCrossEntropy(), X[:4, :3], (VALUES > 0.5) * 1.0),
    "bce of shares": (BinaryCrossEntropy(), X[:4, :3], VALUES),
    "bce of class numbers": (BinaryCrossEntropy(), X[:, :1], np.array([0, 1, -1, 1, 0], np.int32)),
}


@pytest.mark.parametrize("loss, x, labels", OF_EACH.values(), ids=OF_EACH)
def test_gradient_of_each_loss_is_the_derivative(loss, x, labels):
    random = np.random.default_rng(3)
    _, dx = gradient(loss, x, 7, labels)
    for _ in range(3):
        d = random.standard_normal(x.shape)
        expected = slope(lambda step, d=d: evaluate(loss, x + step * d, labels)[0]) / 7
        assert abs(np.sum(dx * d) - expected) <= TOLERANCE * abs(expected)


def test_dense_classes_are_examples_of_their_own():
    loss, x, labels = OF_EACH["dense ce"]
    rows, classes = x.reshape(-1, 4), labels.reshape(-1)
    np.testing.assert_array_equal(evaluate(loss, x, labels), evaluate(loss, rows, classes))
    np.testing.assert_array_equal(gradient(loss, x, 7, labels)[1], gradient(loss, rows, 7, classes)[1].reshape(x.shape))


def test_losses_of_values_as_written_down():
    x, y, wanted = np.array([[3.0], [0.5], [-1.0]]), np.array([1.0, 0.0, 0.0]), {}
    wanted["mse"] = 4 + 0.25 + 1
    wanted["mae"] = 2 + 0.5 + 1
    wanted["huber"] = 0.7 * (2 - 0.35) + 0.125 + 0.7 * (1 - 0.35)
    p = 1 / (1 + np.exp(-x[:, 0]))
    wanted["bce"] = -np.log([p[0], 1 - p[1], 1 - p[2]]).sum()
    for name, sum_of_losses in wanted.items():
        loss = LOSSES[name].make(ModelConfig(loss=name, huber_delta=0.7))
        correct = 2 if name == "bce" else 0
        np.testing.assert_allclose(evaluate(loss, x, y), [sum_of_losses, correct, 3], rtol=1e-14)


def test_bce_holds_for_outputs_of_any_size():
    """log(1 + e^x) neither overflows nor loses a small loss."""
    loss, y = BinaryCrossEntropy(), np.array([1.0, 0.0])
    np.testing.assert_allclose(evaluate(loss, np.array([[40.0], [-40.0]]), y)[0], 2 * np.exp(-40), rtol=1e-12)
    np.testing.assert_allclose(evaluate(loss, np.array([[-1e4], [1e4]]), y)[0], 2e4)


def test_predictions_are_probabilities_or_values():
    ctx, x = make_pass(OPS, 4), OPS.from_host(X[:4, :3])
    np.testing.assert_allclose(OPS.to_host(BinaryCrossEntropy().predict(ctx, x)), 1 / (1 + np.exp(-X[:4, :3])))
    np.testing.assert_allclose(OPS.to_host(SoftmaxCrossEntropy().predict(ctx, OPS.from_host(DENSE))).sum(-1), 1)
    assert MeanSquaredError().predict(ctx, x) is x


@pytest.mark.parametrize("label", [np.nan, 2.0, -1.0])
def test_a_label_that_is_no_share_makes_bce_nan(label):
    assert np.isnan(evaluate(BinaryCrossEntropy(), np.ones((2, 1)), np.array([1.0, label]))[0])


def test_totals_are_loss_correct_and_valid_and_ignored_rows_have_no_gradient():
    loss, rows = SoftmaxCrossEntropy(), [0, 1, 3, 4]
    p = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    expected = -np.log(p[rows, LABELS[rows]]).sum()
    correct = (X.argmax(1)[rows] == LABELS[rows]).sum()
    np.testing.assert_allclose(evaluate(loss, X), [expected, correct, 4], rtol=1e-12)
    totals, dx = gradient(loss, X, 4)
    np.testing.assert_array_equal(totals, evaluate(loss, X))
    assert dx.any(1).tolist() == [True, True, False, True, True]
    assert evaluate(SoftmaxCrossEntropy(ignore=3), X, np.array([0, 3, 3, 2, 1], np.int32))[2] == 3


def test_nothing_valid_anywhere_divides_by_nothing():
    """The denominator of a batch of ignored labels is 0: the gradient is 0, not NaN."""
    _, dx = gradient(SoftmaxCrossEntropy(), X, 0, np.full(5, -1, np.int32))
    np.testing.assert_array_equal(dx, 0)


def test_a_network_must_give_one_number_a_class():
    check = partial(SoftmaxCrossEntropy().check, (10,), ONE_CLASS_NUMBER, layer="out")
    check(classes=10)
    for refused, words in (
        ({"classes": 0}, ("--loss ce", "no labels")),
        ({"classes": 100}, ("'out'", "gives 10", "100 classes", "--classes 100")),
        ({"classes": 1}, ("'out'", "1 class", "--classes 1", "a model")),
        ({"classes": 3, "file": Path("lenet.toml")}, ("'out'", "--model", "lenet.toml", "--classes 3")),
    ):
        with pytest.raises(ModelError, match=says(*words)):
            check(**refused)
    for loss in (MeanSquaredError(), BinaryCrossEntropy()):
        with pytest.raises(ModelError, match=says(f"--loss {loss.name}", "no labels")):
            loss.check((1,), ONE_CLASS_NUMBER, 0, "out")


FIELD = LabelForm((8, 8), values=True)
UNFIT = [
    ("ce", (5,), LabelForm((), True), says("--loss ce", "values", "astype")),
    ("ce", (5,), LabelForm((5,), True), says("--loss ce", "values", "argmax")),
    ("ce", (8, 8, 3), LabelForm((8, 8)), says("--loss", "8x8x3", "8x8x5")),
    ("ce", (5,), LabelForm((8, 8)), says("--loss", "5", "8x8")),
    ("mse", (10,), ONE_CLASS_NUMBER, says("--loss", "10")),
    ("bce", (8, 8, 2), FIELD, says("--loss", "8x8x2", "8x8", "ends", "set")),
]
FITTING = [
    ("ce", (5,), ONE_CLASS_NUMBER), ("ce", (8, 8, 5), LabelForm((8, 8))), ("ce", (4, 5), LabelForm((4,))),
    ("mse", (8, 8), FIELD), ("mse", (8, 8, 1), FIELD), ("mae", (1,), LabelForm((), True)),
    ("huber", (3,), LabelForm((3,), True)), ("bce", (1,), ONE_CLASS_NUMBER), ("bce", (3,), LabelForm((3,))),
]  # fmt: skip


def test_outputs_fit_labels_of_their_shape():
    for name, output, labels in FITTING:
        make_loss(ModelConfig(loss=name)).check(output, labels, 5, "out")


@pytest.mark.parametrize("name, output, labels, message", UNFIT)
def test_outputs_of_other_shapes_are_refused(name, output, labels, message):
    with pytest.raises(ModelError, match=message):
        make_loss(ModelConfig(loss=name)).check(output, labels, 5, "out")


def test_an_unknown_loss_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=says("--loss", "--plugin", "cee")):
        make_loss(ModelConfig(loss="cee"))
    assert make_loss(ModelConfig(label_smoothing=0.1)) == SoftmaxCrossEntropy(0.1)
    assert SoftmaxCrossEntropy(0.1).evaluated() == SoftmaxCrossEntropy()
