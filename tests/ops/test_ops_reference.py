"""The reference against loops that follow the definitions, and values worked out by hand."""

import itertools

import numpy as np
import pytest

from ringtrain.ops.base import PoolGeometry
from ringtrain.ops.reference import ReferenceOps
from tests.nn.nn_support import slope
from tests.ops.cases import CONVOLUTIONS, POOLS, WINDOWS, window_shape

OPS = ReferenceOps("float64")


def draw(*shape, seed=3):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


SMALL = [name for name in CONVOLUTIONS if name not in ("long rows", "many tiles")]


@pytest.mark.parametrize("name", SMALL)
def test_convolution_is_its_definition(name):
    h, w, c, k, geometry = CONVOLUTIONS[name]
    x, weight, b = draw(2, h, w, c), draw(geometry.kernel, geometry.kernel, c // geometry.groups, k), draw(k)
    y = np.empty((2, geometry.output(h), geometry.output(w), k))
    OPS.conv2d(x, weight, b, y, geometry)
    for n, p, q, f in np.ndindex(y.shape):
        assert y[n, p, q, f] == pytest.approx(b[f] + convolved(x[n], weight, p, q, f, geometry), abs=1e-12)


def convolved(x, weight, p, q, f, geometry):
    channels, features = weight.shape[2], weight.shape[3] // geometry.groups
    total = 0.0
    for r, s, c in np.ndindex(weight.shape[:3]):
        i, j = p * geometry.stride + r - geometry.pad, q * geometry.stride + s - geometry.pad
        if 0 <= i < x.shape[0] and 0 <= j < x.shape[1]:
            total += x[i, j, f // features * channels + c] * weight[r, s, c, f]
    return total


@pytest.mark.parametrize("geometry", POOLS.values(), ids=POOLS.keys())
def test_pools_are_their_definitions(geometry):
    x = np.round(draw(2, 7, 9, 3))  # rounded, so that some are equal
    shape = (2, geometry.output(7), geometry.output(9), 3)
    highest, where, mean = np.empty(shape), np.empty(shape, np.uint8), np.empty(shape)
    OPS.max_pool(x, highest, where, geometry)
    OPS.avg_pool(x, mean, geometry)
    for n, p, q, c in np.ndindex(shape):
        inside, elements, divisor = window(x[n, :, :, c], p, q, geometry)
        assert highest[n, p, q, c] == max(inside)
        assert where[n, p, q, c] == elements[int(np.argmax(inside))]
        assert mean[n, p, q, c] == pytest.approx(sum(inside) / divisor)


def window(x, p, q, geometry):
    """(values inside the image, their elements of the window, elements not beyond the padding)"""
    inside, elements, divisor = [], [], 0
    for r, s in itertools.product(range(geometry.kernel), repeat=2):
        i, j = p * geometry.stride + r - geometry.pad, q * geometry.stride + s - geometry.pad
        divisor += i < x.shape[0] + geometry.pad and j < x.shape[1] + geometry.pad
        if 0 <= i < x.shape[0] and 0 <= j < x.shape[1]:
            inside.append(x[i, j])
            elements.append(r * geometry.kernel + s)
    return inside, elements, divisor


def test_max_of_a_window_of_minus_infinities_is_one_of_them():
    x, y, where = np.full((1, 2, 2, 1), -np.inf), np.empty((1, 2, 2, 1)), np.empty((1, 2, 2, 1), np.uint8)
    OPS.max_pool(x, y, where, PoolGeometry(3, 2, 1, True))
    assert np.isneginf(y).all() and where.reshape(-1).tolist()[0] == 4


def test_ghost_batches_are_normalised_apart():
    x = draw(5, 2, 2, 3) * 4 + 7
    y, mean, var = np.empty_like(x), np.empty((3, 3)), np.empty((3, 3))
    OPS.batch_norm(x, np.ones(3), np.zeros(3), y, mean, var, 2, 0.0)
    for g, part in enumerate((slice(0, 2), slice(2, 4), slice(4, 5))):
        assert np.allclose(y[part].mean(axis=(0, 1, 2)), 0) and np.allclose(y[part].std(axis=(0, 1, 2)), 1)
        assert np.allclose(mean[g], x[part].mean(axis=(0, 1, 2)))


def test_statistics_of_parts_make_those_of_the_whole():
    """Two parts of 3 and 2 examples, whose sums are added: the gradient of one ghost batch of 5."""
    ops, random = ReferenceOps("float64"), np.random.default_rng(2)
    x, dy, gamma = random.standard_normal((5, 2, 3, 4)), random.standard_normal((5, 2, 3, 4)), random.standard_normal(4)
    y, mean, var, want = np.empty_like(x), np.empty((1, 4)), np.empty((1, 4)), np.empty_like(x)
    ops.batch_norm(x, gamma, np.zeros(4), y, mean, var, 5, 1e-5)
    ops.batch_norm_back(x, gamma, y, mean, var, dy, np.empty(4), np.empty(4), want, 5, 1e-5)
    sums, dx = np.zeros((2, 2, 4)), np.empty_like(x)
    for part, total in zip((slice(0, 3), slice(3, 5)), sums, strict=True):
        ops.batch_norm_sums(x[part], y[part], mean[0], dy[part], total)
    ops.batch_norm_dx(x, gamma, mean[0], var[0], dy, sums.sum(axis=0), 30, dx, 1e-5)
    np.testing.assert_allclose(dx, want, rtol=1e-11, atol=1e-13)
    moments = np.empty((2, 4))
    ops.batch_moments(x, moments)
    np.testing.assert_allclose(moments, [mean[0], var[0]], rtol=1e-12)


def test_cross_entropy_of_known_probabilities():
    x, dx, totals = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [1, 1, 1]]), np.empty((3, 3)), np.zeros(3)
    OPS.softmax_cross_entropy(x, np.array([1, 1, -1], np.int32), dx, totals, 2.0)
    assert totals == pytest.approx([-np.log(0.25) - np.log(0.8), 1, 2])
    assert np.allclose(dx, [[1, -1.5, 0.5], [0.2, -0.4, 0.2], [0, 0, 0]])
    OPS.softmax_cross_entropy(x[:1], np.array([1], np.int32), None, totals, 1.0, 0.3)
    smoothed = -(0.1 * np.log(0.5) + 0.8 * np.log(0.25) + 0.1 * np.log(0.25))
    assert totals[0] == pytest.approx(-np.log(0.25) - np.log(0.8) + smoothed)


def test_images_are_cropped_mirrored_and_padded_with_nothing():
    image = np.arange(12, dtype=np.uint8).reshape(1, 3, 4, 1)
    y, mean = np.empty((1, 3, 3, 1)), np.full((3, 4, 1), 1.0)
    for top, left, flip, wanted in (
        (0, 1, 0, [[0, 1, 2], [4, 5, 6], [8, 9, 10]]),
        (0, 1, 1, [[2, 1, 0], [6, 5, 4], [10, 9, 8]]),
        (-1, -1, 0, [[0, 0, 0], [0, -1, 0], [0, 3, 4]]),
        (1, 2, 1, [[0, 6, 5], [0, 10, 9], [0, 0, 0]]),
    ):
        places = np.array([top], np.int32), np.array([left], np.int32), np.array([flip], np.uint8)
        OPS.prepare_images(image, y, mean, np.array([2.0]), *places)
        assert (y[0, :, :, 0] / 2).tolist() == wanted


def test_dropout_drops_the_rate_and_keeps_the_mean():
    x, y = np.ones((50, 400)), np.empty((50, 400))
    OPS.dropout(x, y, np.arange(50), np.array([5], np.uint64), 1, 0.3)
    assert set(np.unique(y)) == {0, 1 / 0.7}
    assert (y == 0).mean() == pytest.approx(0.3, abs=0.01)
    assert np.abs((y == 0).mean(axis=0) - 0.3).max() < 0.3
    OPS.dropout(x, y, np.arange(50), np.array([5], np.uint64), 1, 0.0)
    assert (y == 1).all()


def test_optimizers_follow_their_formulas():
    w, g, v = np.array([1.0]), np.array([0.5]), np.array([0.2])
    OPS.sgd(w, g, v, 0.1, 0.9, 0.01, False)
    assert (v[0], w[0]) == pytest.approx((0.9 * 0.2 + 0.51, 1 - 0.1 * 0.69))
    w, v = np.array([1.0]), np.array([0.2])
    OPS.sgd(w, g, v, 0.1, 0.9, 0.01, True)
    assert w[0] == pytest.approx(1 - 0.1 * (0.51 + 0.9 * 0.69))
    w, m, v = np.array([1.0]), np.zeros(1), np.zeros(1)
    OPS.adamw(w, g, m, v, 0.1, 0.9, 0.99, 0.0, 0.01, 1)
    assert w[0] == pytest.approx(1 - 0.001 - 0.1)  # the first step is the sign of the gradient
    OPS.approach(w, np.array([2.0]), 0.25)
    assert w[0] == pytest.approx(0.899 + 0.25 * (2 - 0.899))


def check(forward, back, *inputs):
    """``forward(*inputs)`` gives y; ``back(dy)`` gives the gradient of each input for sum(y · dy)."""
    dy = draw(*forward(*inputs).shape, seed=5)
    directions = [draw(*x.shape, seed=6) for x in inputs]
    moved = list(zip(inputs, directions, strict=True))
    wanted = slope(lambda step: (forward(*(x + step * d for x, d in moved)) * dy).sum())
    gradients = back(dy.copy())
    got = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    assert got == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_go_back_to_where_they_came_from(name):
    """As gradients of one another: both are linear."""
    shape, geometry = WINDOWS[name]
    x, columns = draw(2, *shape), draw(*window_shape(2, shape, geometry))

    def forward(x):
        return np.concatenate([_columns(x, group) for group in range(geometry.groups)])

    def _columns(x, group):
        columns = np.empty(window_shape(2, shape, geometry))
        OPS.columns(x, columns, geometry, group)
        return columns

    def back(dy):
        dx = np.empty_like(x)
        for group, part in enumerate(np.split(dy, geometry.groups)):
            OPS.columns_back(part.copy(), None, dx, geometry, group)
        return (dx,)

    check(forward, back, x)
    bias, y = draw(shape[-1]), np.empty_like(x)

    def spread(columns, bias):
        OPS.columns_back(columns, bias, y, geometry, relu=True)
        return y.copy()

    def gathered(dy):
        dcolumns, db = np.empty_like(columns), np.empty_like(bias)
        OPS.bias_back(spread(columns, bias), dy, db, relu=True)
        OPS.columns(dy, dcolumns, geometry)
        return dcolumns, db

    if geometry.groups == 1:
        check(spread, gathered, columns, bias)
