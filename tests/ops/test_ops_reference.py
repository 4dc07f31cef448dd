"""The reference against loops that follow the definitions, numerical derivatives, and values worked out by hand."""

import itertools

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry, PoolGeometry
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import CONVOLUTIONS, POOLS

OPS = ReferenceOps("float64")


def draw(*shape, seed=3):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


# ── definitions, as loops ─────────────────────────────────────────────────────────────────────────────────
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


def test_the_average_divides_by_padding_but_not_by_what_lies_beyond():
    x, y = np.ones((1, 4, 4, 1)), np.empty((1, 3, 3, 1))
    OPS.avg_pool(x, y, PoolGeometry(3, 2, 1, True))
    # Windows start at -1, 1, 3. The first has 2 of 3 rows inside; the last 1 of the 2 that padding reaches.
    inside, counted = np.array([2, 3, 1]), np.array([3, 3, 2])
    assert np.allclose(y[0, :, :, 0], np.outer(inside, inside) / np.outer(counted, counted))


def test_max_of_a_window_of_minus_infinities_is_one_of_them():
    x, y, where = np.full((1, 2, 2, 1), -np.inf), np.empty((1, 2, 2, 1)), np.empty((1, 2, 2, 1), np.uint8)
    OPS.max_pool(x, y, where, PoolGeometry(3, 2, 1, True))
    assert np.isneginf(y).all() and where.reshape(-1).tolist()[0] == 4


@pytest.mark.parametrize("size", [2, 3, 5])
def test_local_responses_are_their_definitions(size):
    x, y, scale = draw(1, 4, 5, 6), np.empty((1, 4, 5, 6)), np.empty((1, 4, 5, 6))
    before, after = (size - 1) // 2, size - (size - 1) // 2
    OPS.lrn_across(x, y, scale, size, 0.3, 0.75, 2.0)
    for c in range(6):
        squares = (x[..., max(0, c - before) : c + after] ** 2).sum(axis=-1)
        assert np.allclose(y[..., c], x[..., c] * (2 + 0.3 / size * squares) ** -0.75)
    OPS.lrn_within(x, y, scale, size, 0.3, 0.75)
    for i, j in np.ndindex(4, 5):
        part = x[:, max(0, i - before) : i + after, max(0, j - before) : j + after]
        expected = x[:, i, j] * (1 + 0.3 / size**2 * (part**2).sum(axis=(1, 2))) ** -0.75
        assert np.allclose(y[:, i, j], expected)


def test_ghost_batches_are_normalised_apart():
    x = draw(5, 2, 2, 3) * 4 + 7
    y, mean, var = np.empty_like(x), np.empty((3, 3)), np.empty((3, 3))
    OPS.batch_norm(x, np.ones(3), np.zeros(3), y, mean, var, 2, 0.0)
    for g, part in enumerate((slice(0, 2), slice(2, 4), slice(4, 5))):
        assert np.allclose(y[part].mean(axis=(0, 1, 2)), 0) and np.allclose(y[part].std(axis=(0, 1, 2)), 1)
        assert np.allclose(mean[g], x[part].mean(axis=(0, 1, 2)))


def test_shares_of_all_ranks_add_up_to_the_average_statistics():
    whole = draw(6, 2, 2, 3)
    mean, var = np.zeros(3), np.zeros(3)
    for part in (whole[:4], whole[4:]):
        means, variances = np.empty((2, 3)), np.empty((2, 3))
        OPS.batch_norm(part, np.ones(3), np.zeros(3), np.empty_like(part), means, variances, 2, 1e-5)
        OPS.batch_norm_shares(part, means, variances, 2, 6, mean, var, accumulate=True)
    ghosts = whole.reshape(3, 2 * 2 * 2, 3)
    assert np.allclose(mean, whole.mean(axis=(0, 1, 2)))
    assert np.allclose(var, ghosts.var(axis=1, ddof=1).mean(axis=0))


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
    OPS.dropout(x, y, np.arange(50), 5, 0.3)
    assert set(np.unique(y)) == {0, 1 / 0.7}
    assert (y == 0).mean() == pytest.approx(0.3, abs=0.01)
    assert np.abs((y == 0).mean(axis=0) - 0.3).max() < 0.3
    OPS.dropout(x, y, np.arange(50), 5, 0.0)
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


# ── gradients, against the difference of two values in a random direction ─────────────────────────────────
def slope(function, inputs, directions, step=1e-6):
    """d/dt of ``function`` at inputs + t · directions."""
    ahead = function(*(x + step * d for x, d in zip(inputs, directions, strict=True)))
    behind = function(*(x - step * d for x, d in zip(inputs, directions, strict=True)))
    return (ahead - behind) / (2 * step)


def check(forward, back, *inputs):
    """``forward(*inputs)`` gives y; ``back(dy)`` gives the gradient of each input for sum(y · dy)."""
    dy = draw(*forward(*inputs).shape, seed=5)
    directions = [draw(*x.shape, seed=6) for x in inputs]
    wanted = slope(lambda *xs: (forward(*xs) * dy).sum(), inputs, directions)
    gradients = back(dy.copy())
    got = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    assert got == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_convolution(name, relu):
    h, w, c, k, geometry = CONVOLUTIONS[name]
    shape = (2, geometry.output(h), geometry.output(w), k)
    inputs = draw(2, h, w, c), draw(geometry.kernel, geometry.kernel, c // geometry.groups, k), draw(k)
    y = np.empty(shape)

    def forward(*inputs):
        OPS.conv2d(*inputs, y, geometry, relu)
        return y.copy()

    def back(dy):
        dx, dw, db = (np.empty_like(x) for x in inputs)
        OPS.conv2d_back(inputs[0], inputs[1], forward(*inputs), dy, dw, db, dx, geometry, relu)
        return dx, dw, db

    check(forward, back, *inputs)


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_of_linear(relu):
    inputs, y = (draw(4, 6), draw(6, 3), draw(3)), np.empty((4, 3))

    def forward(*inputs):
        OPS.linear(*inputs, y, relu)
        return y.copy()

    def back(dy):
        dx, dw, db = (np.empty_like(x) for x in inputs)
        OPS.linear_back(inputs[0], inputs[1], forward(*inputs), dy, dw, db, dx, relu)
        return dx, dw, db

    check(forward, back, *inputs)


@pytest.mark.parametrize("geometry", POOLS.values(), ids=POOLS.keys())
def test_gradients_of_pools(geometry):
    x = draw(2, 7, 9, 3)
    shape = (2, geometry.output(7), geometry.output(9), 3)
    where = np.empty(shape, np.uint8)

    def pooled(operation, *more):
        def forward(x):
            y = np.empty(shape)
            operation(x, y, *more, geometry)
            return y

        return forward

    def gradient(operation, *more):
        def back(dy):
            dx = np.empty_like(x)
            operation(dy, *more, dx, geometry)
            return (dx,)

        return back

    check(pooled(OPS.max_pool, where), gradient(OPS.max_pool_back, where), x)
    check(pooled(OPS.avg_pool), gradient(OPS.avg_pool_back), x)


def test_gradient_of_the_global_average():
    def forward(x):
        y = np.empty((2, 4))
        OPS.global_avg_pool(x, y)
        return y

    def back(dy):
        dx = np.empty((2, 3, 5, 4))
        OPS.global_avg_pool_back(dy, dx)
        return (dx,)

    check(forward, back, draw(2, 3, 5, 4))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize(("name", "more"), [("lrn_across", (2.0,)), ("lrn_within", ())])
def test_gradients_of_local_responses(name, more, size):
    x = draw(2, 4, 5, 6)
    y, scale = np.empty_like(x), np.empty_like(x)

    def forward(x):
        getattr(OPS, name)(x, y, scale, size, 0.5, 0.75, *more)
        return y.copy()

    def back(dy):
        dx = np.empty_like(x)
        forward(x)
        getattr(OPS, f"{name}_back")(x, y, scale, dy, dx, size, 0.5, 0.75)
        return (dx,)

    check(forward, back, x)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(5, 3, 2, 4), (5, 4)])
def test_gradients_of_batch_norm(shape, relu):
    inputs = draw(*shape), draw(4), draw(4, seed=4)
    y, mean, var = np.empty(shape), np.empty((2, 4)), np.empty((2, 4))

    def forward(*inputs):
        OPS.batch_norm(*inputs, y, mean, var, 3, 1e-3, relu)
        return y.copy()

    def back(dy):
        dx, dgamma, dbeta = (np.empty_like(x) for x in inputs)
        forward(*inputs)
        OPS.batch_norm_back(inputs[0], inputs[1], y, mean, var, dy, dgamma, dbeta, dx, 3, 1e-3, relu)
        return dx, dgamma, dbeta

    check(forward, back, *inputs)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradient_of_cross_entropy(smoothing):
    labels, x, dx = np.array([1, -1, 0, 4], np.int32), draw(4, 5), np.empty((4, 5))

    def loss(x):
        totals = np.zeros(3)
        OPS.softmax_cross_entropy(x, labels, dx, totals, 1.5, smoothing)
        return totals[:1] * 1.5

    def back(dy):
        loss(x)
        return (dx * dy,)

    check(loss, back, x)


def test_gradients_that_are_elementwise():
    x, y, dx = draw(3, 8), np.empty((3, 8)), np.empty((3, 8))

    def rectified(x):
        OPS.relu(x, y)
        return y.copy()

    def rectified_back(dy):
        OPS.relu_back(rectified(x), dy, dx)
        return (dx,)

    def dropped(x):
        OPS.dropout(x, y, np.arange(3), 9, 0.5)
        return y.copy()

    check(rectified, rectified_back, x)
    check(dropped, lambda dy: (dropped(dy),), x)


def test_the_check_itself_says_no():
    with pytest.raises(AssertionError):
        check(lambda x: x**2, lambda dy: (1.9 * dy,), draw(4))


def test_gradients_are_added_where_asked():
    x, w, y, dy = draw(2, 5, 5, 2), draw(3, 3, 2, 4), draw(2, 5, 5, 4), draw(2, 5, 5, 4)
    geometry, once, twice = ConvGeometry(3, 1, 1), np.empty_like(w), np.empty_like(w)
    OPS.conv2d_back(x, w, y, dy, once, None, None, geometry)
    OPS.conv2d_back(x, w, y, dy, twice, None, None, geometry)
    OPS.conv2d_back(x, w, y, dy, twice, None, None, geometry, accumulate=True)
    assert np.allclose(twice, 2 * once)
