"""Each operation's gradients against the difference of two values in a random direction, in float64."""

import numpy as np
import pytest

from ringtrain.ops.base import ACTIVATIONS, ConvGeometry
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import CONVOLUTIONS, DEPTHWISE_LINES, POOLS, UPSAMPLED, WINDOWS, forward_and_back, window_shape

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


def check_operation(name, inputs, y, kept=(), **options):
    def forward(*values, **more):
        return forward_and_back(OPS, name, dict(zip(inputs, values, strict=True)), y, kept, **options, **more)

    check(lambda *values: forward(*values)[0], lambda dy: forward(*inputs.values(), dy=dy)[1], *inputs.values())


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_convolution(name, relu):
    h, w, c, k, geometry = CONVOLUTIONS[name]
    weight = draw(geometry.kernel, geometry.kernel, c // geometry.groups, k)
    y = "y_NPQK", (2, geometry.output(h), geometry.output(w), k)
    inputs = {"x_NHWC": draw(2, h, w, c), "w_RSCK": weight, "b_K": draw(k)}
    check_operation("conv2d", inputs, y, geometry=geometry, relu=relu)


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_of_linear(relu):
    inputs = {"x_ND": draw(4, 6), "w_DK": draw(6, 3), "b_K": draw(3)}
    check_operation("linear", inputs, ("y_NK", (4, 3)), relu=relu)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("length", "channels", "geometry"), DEPTHWISE_LINES)
def test_gradients_of_depthwise_convolution_along_a_line(length, channels, geometry, relu):
    inputs = {"x_NLC": draw(2, length, channels), "w_SC": draw(geometry.kernel, channels), "b_C": draw(channels)}
    y = "y_NPC", (2, geometry.output(length), channels)
    check_operation("depthwise_line", inputs, y, geometry=geometry, relu=relu)


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
    y = "y_NPQC", (2, h * scale, w * scale, c)
    check_operation("upsample", {"x_NHWC": draw(2, h, w, c)}, y, bilinear=bilinear)


@pytest.mark.parametrize("geometry", POOLS.values(), ids=POOLS.keys())
def test_gradients_of_pools(geometry):
    inputs, shape = {"x_NHWC": draw(2, 7, 9, 3)}, (2, geometry.output(7), geometry.output(9), 3)
    where = {"where_NPQC": np.empty(shape, np.uint8)}
    check_operation("max_pool", inputs, ("y_NPQC", shape), where, geometry=geometry)
    check_operation("avg_pool", inputs, ("y_NPQC", shape), geometry=geometry)


def test_gradient_of_the_global_average():
    check_operation("global_avg_pool", {"x_NHWC": draw(2, 3, 5, 4)}, ("y_NC", (2, 4)))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize(("name", "more"), [("lrn_across", {"k": 2.0}), ("lrn_within", {})])
def test_gradients_of_local_responses(name, more, size):
    x = draw(2, 4, 5, 6)
    kept = {"scale_NHWC": np.empty_like(x)}
    check_operation(name, {"x_NHWC": x}, ("y_NHWC", x.shape), kept, size=size, alpha=0.5, beta=0.75, **more)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(5, 3, 2, 4), (5, 4)])
def test_gradients_of_batch_norm(shape, relu):
    inputs = {"x_NHWC": draw(*shape), "gamma_C": draw(4), "beta_C": draw(4, seed=4)}
    kept = {"mean_GC": np.empty((2, 4)), "var_GC": np.empty((2, 4))}
    check_operation("batch_norm", inputs, ("y_NHWC", shape), kept, ghost=3, eps=1e-3, relu=relu)


@pytest.mark.parametrize("shape, groups", [((5, 1, 12), 1), ((3, 7, 12), 4)])
def test_gradients_of_group_norm(shape, groups):
    inputs = {"x_NSC": draw(*shape), "gamma_C": draw(12), "beta_C": draw(12, seed=4)}
    kept = {"mean_NG": np.empty((shape[0], groups)), "inverse_NG": np.empty((shape[0], groups))}
    check_operation("group_norm", inputs, ("y_NSC", shape), kept, eps=1e-3)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_gradients_of_activations(kind):
    check_operation("activation", {"x_N": 3 * draw(4, 30)}, ("y_N", (4, 30)), in_place=True, kind=kind)


def test_gradients_of_embeddings():
    ids = {"x_NL": np.array([[0.0, 3, 3], [1, 3, 0]])}
    check_operation("embedding", {"w_VD": draw(5, 4)}, ("y_NLD", (2, 3, 4)), ids)
    x, b, db = draw(3, 8), draw(8), np.empty(8)

    def added(x, b):
        y = np.empty((3, 8))
        OPS.add_bias(x, b, y)
        return y

    def added_back(dy):
        OPS.bias_back(None, dy, db)
        return dy, db

    check(added, added_back, x, b)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention(causal):
    shares = {"y_NHLL": np.empty((2, 3, 5, 5))}
    check_operation("attention", {"x_NLE": draw(2, 5, 18)}, ("y_NLD", (2, 5, 6)), shares, causal=causal)


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
    x = draw(3, 8)

    def dropped(x):
        y = np.empty((3, 8))
        OPS.dropout(x, y, np.arange(3), np.array([9], np.uint64), 1, 0.5)
        return y

    check_operation("relu", {"x": x}, ("y", x.shape))
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
