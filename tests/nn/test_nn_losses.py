"""The loss, and what it asks of a network's output."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from nn_support import STEP, TOLERANCE, make_pass, reference

from ringtrain.config.record import TrainConfig
from ringtrain.errors import ConfigError, ModelError
from ringtrain.nn import texts
from ringtrain.nn.losses import ONE_CLASS_NUMBER, SoftmaxCrossEntropy, make_loss

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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradient_is_the_derivative(smoothing):
    loss, random = SoftmaxCrossEntropy(smoothing), np.random.default_rng(3)
    _, dx = gradient(loss, X, denominator=4)
    for _ in range(3):
        d = random.standard_normal(X.shape)
        ends = [evaluate(loss, X + sign * STEP * d)[0] for sign in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * STEP) / 4
        assert abs(np.sum(dx * d) - expected) <= TOLERANCE * abs(expected)


def test_totals_are_loss_correct_and_valid():
    loss = SoftmaxCrossEntropy()
    p = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    rows = [0, 1, 3, 4]
    expected = -np.log(p[rows, LABELS[rows]]).sum()
    correct = (X.argmax(1)[rows] == LABELS[rows]).sum()
    np.testing.assert_allclose(evaluate(loss, X), [expected, correct, 4], rtol=1e-12)
    np.testing.assert_array_equal(gradient(loss, X, 4)[0], evaluate(loss, X))


def test_ignored_rows_have_no_gradient():
    _, dx = gradient(SoftmaxCrossEntropy(), X, 4)
    assert not dx[2].any()
    assert dx[[0, 1, 3, 4]].any(1).all()


def test_another_label_may_be_ignored():
    assert evaluate(SoftmaxCrossEntropy(ignore=3), X, np.array([0, 3, 3, 2, 1], np.int32))[2] == 3


def test_nothing_valid_anywhere_divides_by_nothing():
    """The denominator of a batch of ignored labels is 0: the gradient is 0, not NaN."""
    _, dx = gradient(SoftmaxCrossEntropy(), X, 0, np.full(5, -1, np.int32))
    np.testing.assert_array_equal(dx, 0)


def wrong(**given):
    return texts.CLASSES.pattern(layer="out", **given)


def test_a_network_must_give_one_number_a_class():
    check = partial(SoftmaxCrossEntropy().check, (10,), ONE_CLASS_NUMBER, layer="out")
    check(classes=10)
    with pytest.raises(ModelError, match=wrong(shape="10", count="100 classes", classes=100)):
        check(classes=100)
    with pytest.raises(ModelError, match=wrong(count="1 class", model=texts.A_MODEL, classes=1)):
        check(classes=1)
    with pytest.raises(ModelError, match=wrong(model=texts.A_COPY(file="lenet.toml"), classes=3)):
        check(classes=3, file=Path("lenet.toml"))


def test_an_unknown_loss_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=texts.UNKNOWN_LOSS.pattern(name="cee")):
        make_loss(TrainConfig(loss="cee"))
    assert make_loss(TrainConfig(label_smoothing=0.1)) == SoftmaxCrossEntropy(0.1)
    assert SoftmaxCrossEntropy(0.1).evaluated() == SoftmaxCrossEntropy()
