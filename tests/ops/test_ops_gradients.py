"""Each operation's gradients against the difference of two values in a random direction, in float64."""

import numpy as np
import pytest

from ringtrain.ops.base import ACTIVATIONS, ConvGeometry
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import CONVOLUTIONS, DEPTHWISE_LINES, POOLS, UPSAMPLED, WINDOWS, window_shape

OPS = ReferenceOps("float64")
SMALL = [name for name in CONVOLUTIONS if name not in ("long rows", "many tiles", "depthwise, wide")]


def draw(*shape, seed=3):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


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


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("length", "channels", "geometry"), DEPTHWISE_LINES)
def test_gradients_of_depthwise_convolution_along_a_line(length, channels, geometry, relu):
    inputs = draw(2, length, channels), draw(geometry.kernel, channels), draw(channels)
    y = np.empty((2, geometry.output(length), channels))

    def forward(*inputs):
        OPS.depthwise_line(*inputs, y, geometry, relu)
        return y.copy()

    def back(dy):
        dx, dw, db = (np.empty_like(x) for x in inputs)
        OPS.depthwise_line_back(inputs[0], inputs[1], forward(*inputs), dy, dw, db, dx, geometry, relu)
        return dx, dw, db

    check(forward, back, *inputs)


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


@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize(("h", "w", "c", "scale"), UPSAMPLED)
def test_gradients_of_larger_images(h, w, c, scale, bilinear):
    def forward(x):
        y = np.empty((2, h * scale, w * scale, c))
        OPS.upsample(x, y, bilinear)
        return y

    def back(dy):
        dx = np.empty((2, h, w, c))
        OPS.upsample_back(dy, dx, bilinear)
        return (dx,)

    check(forward, back, draw(2, h, w, c))


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


@pytest.mark.parametrize("shape, groups", [((5, 1, 12), 1), ((3, 7, 12), 4)])
def test_gradients_of_group_norm(shape, groups):
    inputs = draw(*shape), draw(12), draw(12, seed=4)
    y, mean, inverse = np.empty(shape), np.empty((shape[0], groups)), np.empty((shape[0], groups))

    def forward(*inputs):
        OPS.group_norm(*inputs, y, mean, inverse, 1e-3)
        return y.copy()

    def back(dy):
        dx, dgamma, dbeta = (np.empty_like(x) for x in inputs)
        forward(*inputs)
        OPS.group_norm_back(inputs[0], inputs[1], mean, inverse, dy, dgamma, dbeta, dx)
        return dx, dgamma, dbeta

    check(forward, back, *inputs)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_gradients_of_activations(kind):
    x, y = 3 * draw(4, 30), np.empty((4, 30))

    def forward(x):
        OPS.activation(kind, x, y)
        return y.copy()

    def back(dy):
        OPS.activation_back(kind, x, forward(x), dy, dy)
        return (dy,)

    check(forward, back, x)


def test_gradients_of_embeddings():
    ids, w, dw = np.array([[0.0, 3, 3], [1, 3, 0]]), draw(5, 4), np.empty((5, 4))
    x, b, db = draw(3, 8), draw(8), np.empty(8)

    def looked_up(w):
        y = np.empty((2, 3, 4))
        OPS.embedding(ids, w, y)
        return y

    def looked_up_back(dy):
        OPS.embedding_back(ids, dy, dw)
        return (dw,)

    def added(x, b):
        y = np.empty((3, 8))
        OPS.add_bias(x, b, y)
        return y

    def added_back(dy):
        OPS.bias_back(None, dy, db)
        return dy, db

    check(looked_up, looked_up_back, w)
    check(added, added_back, x, b)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention(causal):
    x, shares = draw(2, 5, 18), np.empty((2, 3, 5, 5))

    def forward(x):
        y = np.empty((2, 5, 6))
        OPS.attention(x, y, shares, causal)
        return y

    def back(dy):
        dx = np.empty_like(x)
        forward(x)
        OPS.attention_back(x, shares, dy, dx)
        return (dx,)

    check(forward, back, x)


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
        OPS.dropout(x, y, np.arange(3), np.array([9], np.uint64), 1, 0.5)
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
