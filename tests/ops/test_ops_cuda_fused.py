"""What a device does within a convolution: moments of its result, normalisation of its input, a sum of gradients."""

from dataclasses import replace

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cuda import wgmma
from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.normalised import Normalised, NormStatistics
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import Call, as_float64, statistics_of, uploaded
from tests.ops.cuda_support import TOLERANCE, TYPES, assert_close, cuda_ops, needs_compiler, perform
from tests.ops.test_ops_cuda_convolution import SMALLEST, FixedChoice, assert_alike

pytestmark = [needs_compiler, pytest.mark.device]

# images, height, width, channels, features; a ghost batch has 3 images, the last one fewer.
SHAPES = {
    "tiles of one ghost batch each": (7, 5, 5, 16, 24, ConvGeometry(3, 1, 1)),
    "several tiles a ghost batch": (4, 12, 11, 24, 72, ConvGeometry(3, 1, 1)),
    "1x1": (5, 6, 7, 32, 8, ConvGeometry(1)),
    "1x1, stride 2": (4, 8, 8, 16, 136, ConvGeometry(1, 2)),
    "several ghost batches a step": (14, 2, 2, 16, 24, ConvGeometry(1)),
    "features that fill no vector": (5, 6, 7, 6, 9, ConvGeometry(3, 1, 1)),
}
GHOST = 3


def drawing(seed=3):
    random = np.random.default_rng(seed)
    return lambda *shape: random.standard_normal(shape)


def measured(ops, name, x, w, ghost=GHOST):
    """(y, its statistics as the convolution has measured them: None if it has not)"""
    n, h, width, _, k, geometry = SHAPES[name]
    y = ops.empty((n, geometry.output(h), geometry.output(width), k), ops.active)
    memory = ops.empty((ops.moment_parts(y.shape, ghost),))
    inputs = uploaded(ops, x), ops.from_host(w.astype(ops.dtype)), None, y, geometry
    moments = ops.conv2d(*inputs, moments=memory, ghost=ghost)
    if moments is None:
        return ops.to_host(y), None
    assert moments.slices * 2 * k * -(-n // ghost) <= memory.size
    statistics = uploaded(ops, statistics_of(lambda *shape: np.ones(shape, ops.dtype), n, k, ghost))
    ops.norm_statistics(y, statistics, moments)
    return ops.to_host(y), [ops.to_host(each) for each in (statistics.mean, statistics.var, statistics.scale)]


def assert_measured(y, moments, dtype, ghost=GHOST):
    for number, start in enumerate(range(0, len(y), ghost)):
        wide = y[start : start + ghost].astype(np.float64)
        mean, var = wide.mean(axis=(0, 1, 2)), wide.var(axis=(0, 1, 2))
        for got, wanted in zip(moments, (mean, var, 1 / np.sqrt(var + 1e-5)), strict=True):
            assert_close(got[number], wanted, TOLERANCE[dtype], number)


def image_of(ops, name, ghost=None):
    """``ghost``: of an image that is to be normalised."""
    n, h, w, c, k, geometry = SHAPES[name]
    draw = drawing()
    x, weight = draw(n, h, w, c).astype(ops.active), draw(geometry.kernel, geometry.kernel, c, k)
    if ghost:
        x = Normalised(x, statistics_of(lambda *shape: draw(*shape).astype(ops.dtype), n, c, ghost), True)
    return x, weight


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("ghost", [None, GHOST], ids=["", "of a normalised image"])
def test_moments_are_those_of_the_rounded_result(types, name, ghost):
    ops = cuda_ops(*types, choice=FixedChoice("implicit"))
    y, moments = measured(ops, name, *image_of(ops, name, ghost))
    if ghost and SHAPES[name][3] % (16 // ops.active.itemsize):
        assert moments is not None  # normalised before
    assert_measured(y, moments, types[0])


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("tile", wgmma.TILES, ids=str)
def test_moments_by_wgmma(tile):
    choice, name = FixedChoice(f"wgmma {tile}"), "several tiles a ghost batch"
    ops = cuda_ops("float32", "bfloat16", choice=choice)
    y, moments = measured(ops, name, *image_of(ops, name))
    assert choice.taken == (tile.columns // 2 < 72)
    assert_measured(y, moments, "float32")


@pytest.mark.parametrize("way, ghost", [("columns, own", None), ("implicit", GHOST - 1)])
def test_a_way_measures_nothing_or_ghost_batches_of_which_its_tiles_are(way, ghost):
    """Those by which the image is normalised."""
    ops = cuda_ops(choice=FixedChoice(way))
    assert measured(ops, "1x1", *image_of(ops, "1x1", ghost))[1] is None


def test_a_ghost_batch_may_be_of_more_examples_than_fit_in_a_kernels_integers():
    """Of x and of y: all examples are one ghost batch."""
    ops, name, ghost = cuda_ops(choice=FixedChoice("implicit")), "several tiles a ghost batch", 2**31 // 12
    x, w = image_of(ops, name, ghost)
    y, moments = measured(ops, name, x, w, ghost)
    assert_measured(y, moments, "float32", ghost)
    plain = Normalised(x.x, replace(x.statistics, ghost=len(y)), x.relu)
    assert (y == measured(ops, name, plain, w, len(y))[0]).all()


def test_moments_of_a_ghost_batch_are_the_same_wherever_it_is():
    ops, name = cuda_ops(), "several tiles a ghost batch"
    x, w = image_of(ops, name)
    _, whole = measured(ops, name, x, w)
    SHAPES["alone"] = (1, *SHAPES[name][1:])
    try:
        _, alone = measured(ops, "alone", x[GHOST:], w)
    finally:
        del SHAPES["alone"]
    assert all((a[1] == b[0]).all() for a, b in zip(whole, alone, strict=True))


@pytest.mark.parametrize("precision", SMALLEST)
@pytest.mark.parametrize("name", list(SHAPES)[:-1])
def test_tensor_cores_of_a_normalised_image(precision, name):
    """Against the reference in float64 on the image as it is rounded after its normalisation."""
    ops, exact = cuda_ops("float32", precision, choice=FixedChoice("implicit")), ReferenceOps("float64")
    n, h, width, _, k, geometry = SHAPES[name]
    x, w = image_of(ops, name, GHOST)
    seen = ops.empty(x.shape, ops.active)
    ops.normalise(uploaded(ops, x.x), uploaded(ops, x.statistics), seen, relu=True)
    seen, w = ops.to_host(seen), w.astype(ops.active).astype("float32")
    out, draw = (n, geometry.output(h), geometry.output(width), k), drawing(5)
    y, dy = draw(*out).astype(ops.active), draw(*out).astype(ops.active)
    weights, rest = {"w_RSCK": w}, {"geometry": geometry}
    outputs = {"dw_RSCK": draw(*w.shape).astype("float32"), "db_K": None, "dx_NHWC": draw(*x.shape).astype(ops.active)}
    calls = [
        ({"b_K": None}, {"y_NPQK": np.zeros_like(y)}, rest),
        ({"y_NPQK": y, "dy_NPQK": dy}, outputs, {**rest, "accumulate": True, "add": True}),
    ]
    for inputs, results, more in calls:
        call, wanted = (
            Call("conv2d_back" if "add" in more else "conv2d", {"x_NHWC": each, **weights, **inputs}, results, more)
            for each in (x, seen)
        )
        got, wanted = perform(ops, call), perform(exact, as_float64(wanted))
        for output, right in wanted.items():
            exactly = output == "dw_RSCK" and precision != "tf32"
            roundings = 2 if output == "dx_NHWC" else 1  # of the gradient, and of the sum
            limit = 1e-5 if exactly else roundings * SMALLEST[precision]
            assert_alike({output: got[output]}, {output: right}, limit, name)


def test_trials_add_nothing():
    """Each way is tried, and the gradient is added once."""
    ops, reference = cuda_ops(choice=Choice()), ReferenceOps("float32")
    for ghost in (None, GHOST):
        x, w = image_of(ops, "1x1", ghost)
        n, h, width, _, k, geometry = SHAPES["1x1"]
        y, dy = drawing(6)(2, n, h, width, k).astype("float32")
        inputs = {"x_NHWC": x, "w_RSCK": w.astype("float32"), "y_NPQK": y, "dy_NPQK": dy}
        outputs = {"dw_RSCK": np.ones(w.shape, "float32"), "db_K": None, "dx_NHWC": np.full(x.shape, 3, "float32")}
        call = Call("conv2d_back", inputs, outputs, {"geometry": geometry, "accumulate": True, "add": True})
        assert_alike(perform(ops, call), perform(reference, call), 5e-6, call)
    assert len(ops.choices.table) == 3  # dw of each kind of image, dx


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 10, 10, 128), (5, 3, 4, 6), (3, 2, 2, 24)], ids=str)
def test_a_sum_keeps_where_it_was_above_0(types, shape):
    """Forward and back in one: of 16 bits the reference keeps what the device has written."""
    ops, draw = cuda_ops(*types), drawing(8)
    n, c = shape[0], shape[-1]
    x, a, dy = (draw(*shape).astype(ops.active) for _ in range(3))
    statistics = statistics_of(lambda *shape: draw(*shape).astype(ops.dtype), n, c, GHOST)
    uploaded_statistics, y = uploaded(ops, statistics), ops.empty(shape, ops.active)
    positive = ops.empty((ops.positive_bytes(shape),), "uint8")
    ops.normalise(ops.from_host(x), uploaded_statistics, y, ops.from_host(a), positive, relu=True)
    kept = ops.to_host(y)
    inputs = {"x_NHWC": x.astype(ops.dtype), "statistics": statistics, "a_NHWC": a.astype(ops.dtype)}
    plain = Call("normalise", inputs, {"y_NHWC": np.zeros(shape, ops.dtype)}, {"relu": True})
    assert_close(kept, perform(ReferenceOps(ops.dtype), plain)["y_NHWC"], TOLERANCE[ops.active.name], "y")
    parameters = ("dgamma_C", "dbeta_C", "mean_C", "var_C")
    outputs = [ops.from_host(np.zeros(c, ops.dtype)) for _ in parameters]
    dx, masked = ops.empty(shape, ops.active), ops.from_host(dy)
    ops.normalise_back(ops.from_host(x), uploaded_statistics, masked, *outputs, dx, n, positive, relu=True)
    dy = np.where(kept > 0, dy, 0)
    assert (ops.to_host(masked) == dy).all()
    inputs = {"x_NHWC": x.astype(ops.dtype), "statistics": statistics, "dy_NHWC": dy.astype(ops.dtype)}
    results = {name: np.zeros(c, ops.dtype) for name in parameters} | {"dx_NHWC": np.zeros(shape, ops.dtype)}
    wanted = perform(ReferenceOps(ops.dtype), Call("normalise_back", inputs, results, {"total": n}))
    for name, got in zip(parameters, outputs, strict=True):
        assert_close(ops.to_host(got), wanted[name], TOLERANCE[ops.dtype.name], name)
    assert_close(ops.to_host(dx), wanted["dx_NHWC"], TOLERANCE[ops.active.name], "dx")


def test_a_normalised_nan_stays_one():
    ops = cuda_ops(choice=FixedChoice("implicit"))
    ones = np.ones((1, 4), np.float32)
    x, w = np.zeros((1, 3, 3, 4), np.float32), np.ones((1, 1, 4, 4), np.float32)
    x[0, 1, 2, 3] = np.nan
    image = Normalised(x, NormStatistics(0 * ones, ones, ones, ones[0], 0 * ones[0], 1, 0.0), True)
    y = ops.empty((1, 3, 3, 4))
    ops.conv2d(uploaded(ops, image), ops.from_host(w), None, y, ConvGeometry(1))
    moments = np.isnan(ops.to_host(y))
    assert moments[0, 1, 2].all() and moments.sum() == 4
