"""Layers on the CPU, but products and batch normalisation: the same bits for any number of threads and any place in
memory, NaN, ties and edges; and the errors of exponentials and logarithms."""

import math

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry, PoolGeometry
from ringtrain.ops.cpu import CpuOps
from ringtrain.ops.normalised import Normalised
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import POOLS, Call, calls, perform, prepare, wide_calls

OPERATIONS = (
    "max_pool", "avg_pool", "global_avg_pool", "softmax", "activation", "group_norm", "embedding", "add_bias",
    "attention", "columns", "bias_back", "upsample", "depthwise_line",
)  # fmt: skip


def of_layers(calls):
    return [call for call in calls if call.operation.startswith(OPERATIONS) or is_depthwise(call)]


def is_depthwise(call) -> bool:
    is_convolution = call.operation.startswith("conv2d") and not isinstance(call.inputs["x_NHWC"], Normalised)
    return is_convolution and call.rest["geometry"].groups == call.inputs["x_NHWC"].shape[3]


def assert_same_bits(several, calls):
    """Of whichever operations."""
    for call in calls:
        alone, *others = ({name: x.tobytes() for name, x in perform(ops, call).items()} for ops in several)
        assert all(other == alone for other in others), str(call)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_for_any_number_of_threads(dtype):
    several = [CpuOps(dtype, threads) for threads in (1, 2, 3)]
    assert_same_bits(several, of_layers([*calls(dtype, 70), *wide_calls(dtype)]))


class Misaligned(CpuOps):
    """Its arrays start ``offset`` elements behind a cache line."""

    def __init__(self, dtype, offset, threads=None):
        super().__init__(dtype, threads)
        self.offset = offset

    def empty(self, shape, dtype=None):
        return super().empty((self.offset + int(np.prod(shape)),), dtype)[self.offset :].reshape(shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_wherever_an_array_lies(dtype):
    several = CpuOps(dtype), Misaligned(dtype, 1), Misaligned(dtype, 3)
    assert_same_bits(several, of_layers([*calls(dtype, 3), *wide_calls(dtype)]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", [1, 5, 8, 13, 20, 37, 50, 96])
def test_any_number_of_channels(dtype, channels):
    """One vector is cut, or taken again, or four are taken at a time."""
    cpu, reference, random = CpuOps(dtype), ReferenceOps(dtype), np.random.default_rng(channels)
    tolerance = 1e-6 if dtype == "float32" else 1e-14
    x = random.integers(-2, 3, (2, 6, 7, channels)).astype(dtype)  # with ties
    for geometry in POOLS.values():
        p, q = geometry.output(6), geometry.output(7)
        outputs = [(np.empty((2, p, q, channels), dtype), np.empty((2, p, q, channels), np.uint8)) for _ in range(2)]
        for ops, (y, where) in zip((cpu, reference), outputs, strict=True):
            ops.max_pool(x, y, where, geometry)
        (y, where), (wanted, places) = outputs
        assert np.array_equal(y, wanted) and np.array_equal(where, places)
        dx, expected = np.full_like(x, 7), np.full_like(x, 7)
        for back in ("max_pool_back", "avg_pool_back"):
            arrays = (y, where) if back == "max_pool_back" else (y,)
            getattr(cpu, back)(*arrays, dx, geometry)
            getattr(reference, back)(*arrays, expected, geometry)
            assert np.abs(dx - expected).max() <= tolerance * np.abs(expected).max()


def test_the_first_of_equals_and_the_first_nan_are_the_greatest():
    ops, nan = CpuOps("float32"), np.nan
    windows = np.array([[1, 2, 2, 0], [nan, 9, nan, 1], [3, nan, 1, nan], [-np.inf] * 4, [-0.0, 0.0, 0.0, -0.0]])
    x = np.repeat(windows.astype(np.float32).reshape(5, 2, 2, 1), 33, axis=3)
    y, where = np.empty((5, 1, 1, 33), np.float32), np.empty((5, 1, 1, 33), np.uint8)
    ops.max_pool(x, y, where, PoolGeometry(2, 2))
    assert (where.reshape(5, 33) == np.array([[1], [0], [1], [0], [0]])).all()
    assert np.array_equal(y[:, 0, 0, 5], [2, nan, nan, -np.inf, 0], equal_nan=True)


def test_a_gradient_that_is_not_finite_stays_with_its_pixel():
    ops = CpuOps("float32")
    dy, where = np.zeros((1, 2, 2, 9), np.float32), np.full((1, 2, 2, 9), 3, np.uint8)
    dy[0, 0, 0, 1], dy[0, 1, 1, 8] = np.nan, np.inf
    dx = np.empty((1, 5, 5, 9), np.float32)
    ops.max_pool_back(dy, where, dx, PoolGeometry(3, 2))
    assert np.isnan(dx[0, 1, 0, 1]) and dx[0, 3, 2, 8] == np.inf and (~np.isfinite(dx)).sum() == 2


@pytest.mark.parametrize("geometry", [ConvGeometry(3, 1, 1, 37), ConvGeometry(5, 2, 2, 37)])
def test_an_example_is_the_same_in_any_batch(geometry):
    ops, random = CpuOps("float32"), np.random.default_rng(1)
    x, w = random.standard_normal((7, 40, 33, 37), np.float32), random.standard_normal((geometry.kernel,) * 2 + (1, 37))
    w, shape = w.astype(np.float32), (geometry.output(40), geometry.output(33), 37)
    dy = random.standard_normal((7, *shape), np.float32)

    def computed(rows):
        y, dx, dw = np.empty((len(x[rows]), *shape), np.float32), np.empty_like(x[rows]), np.empty_like(w)
        ops.conv2d(x[rows], w, None, y, geometry)
        ops.conv2d_back(x[rows], w, y, dy[rows].copy(), dw, None, dx, geometry)
        return y, dx

    for whole, part in zip(computed(slice(None)), computed(slice(3, 5)), strict=True):
        assert whole[3:5].tobytes() == part.tobytes()


def test_many_rows_are_summed_as_exactly_as_few():
    """Gradients of weights over 200,000 pixels, in float32."""
    ops, geometry = CpuOps("float32"), ConvGeometry(3, 1, 1, 3)
    x, dy = (np.random.default_rng(seed).random((50, 64, 64, 3), np.float32) for seed in (1, 2))
    dw, wanted = np.empty((3, 3, 1, 3), np.float32), np.empty((3, 3, 1, 3))
    ops.conv2d_back(x, dw, dy, dy.copy(), dw, None, None, geometry)
    exact = CpuOps("float64")
    exact.conv2d_back(x.astype(float), wanted, dy.astype(float), dy.astype(float), wanted, None, None, geometry)
    np.testing.assert_allclose(dw, wanted, rtol=1e-6)


def test_losses_are_added_row_by_row():
    ops, random = CpuOps("float64"), np.random.default_rng(1)
    x, labels = 3 * random.standard_normal((400, 10)), random.integers(-1, 10, 400).astype(np.int32)
    together, apart = np.full(3, 0.1), np.full(3, 0.1)
    ops.softmax_cross_entropy(x, labels, None, together, 1.0, 0.1)
    for row in range(400):
        ops.softmax_cross_entropy(x[row : row + 1], labels[row : row + 1], None, apart, 1.0, 0.1)
    assert together.tolist() == apart.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_examples(dtype):
    for call in of_layers(calls(dtype, 0)):
        run, outputs = prepare(CpuOps(dtype, 2), call)
        run()
        assert all(x.size == 0 for name, x in outputs().items() if "_N" in name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_example_has_the_same_bits_whatever_shares_its_batch(dtype):
    ops = CpuOps(dtype)
    operations = ("activation", "group_norm", "embedding", "add_bias", "attention", "attention_back")
    for call in (each for each in calls(dtype, 9) if each.operation in operations):
        wanted = perform(ops, call)
        alone = Call(call.operation, _row(call.inputs, 4), _row(call.outputs, 4), call.rest)
        for name, x in perform(ops, alone).items():
            assert x.tobytes() == wanted[name][4:5].tobytes(), f"{call}: {name}"


def _row(arrays, n):
    return {name: x[n : n + 1] if "_N" in name else x for name, x in arrays.items()}


# ── curves.hpp ────────────────────────────────────────────────────────────────────────────────────────────────
def curve(kind, x):
    y = np.empty_like(x)
    CpuOps(x.dtype).activation(kind, x, y)
    return y


@pytest.mark.parametrize(("dtype", "most"), [("float32", 4), ("float64", 5)])
def test_the_errors_of_activations(dtype, most):
    """In units in the last place; of GELU those of x, since its share of x is a difference where x is negative."""
    x = np.concatenate([np.linspace(-30, 30, 40_001), np.linspace(-1e-3, 1e-3, 2001)]).astype(dtype)
    wide = x.astype(np.longdouble)
    sigmoid = 1 / (1 + np.exp(-wide))
    below = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x.astype(float)])
    eps = np.finfo(dtype).eps
    for kind, wanted in (("sigmoid", sigmoid), ("tanh", np.tanh(wide)), ("silu", wide * sigmoid)):
        error = np.abs(curve(kind, x) - wanted) / np.maximum(np.abs(wanted), np.finfo(dtype).tiny)
        assert error.max() < LESS * most * eps, kind
    assert (np.abs(curve("gelu", x) - wide * below) <= LESS * most * eps * np.abs(wide)).all()


def test_activations_of_special_values():
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-40])
    with np.errstate(all="ignore"):
        for dtype in ("float32", "float64"):
            for kind, wanted in {
                "sigmoid": [0.5, 0.5, 1, 0, np.nan, 1, 0, 0.5],
                "tanh": [0, 0, 1, -1, np.nan, 1, -1, 1e-40],
                "gelu": [0, 0, np.inf, np.nan, np.nan, 1e30, 0, 0.5e-40],  # -inf · 0, as torch has it
            }.items():
                got = curve(kind, x.astype(dtype))
                assert np.allclose(got, np.array(wanted).astype(dtype), rtol=1e-6, atol=1e-44, equal_nan=True), kind


def test_a_number_that_is_no_entry_gives_nan_and_no_gradient():
    for make in (CpuOps, ReferenceOps):
        ops, y, dw = make("float32"), np.empty((1, 6, 5), np.float32), np.empty((3, 5), np.float32)
        x = np.array([[2, -1, 3, 0.5, np.nan, 1e20]], np.float32)
        ops.embedding(x, np.ones((3, 5), np.float32), y)
        assert np.isnan(y[0]).all(axis=1).tolist() == [False, True, True, True, True, True]
        ops.embedding_back(x, np.ones_like(y), dw)
        assert dw.sum(axis=1).tolist() == [0, 0, 5]


# ── numbers.hpp ───────────────────────────────────────────────────────────────────────────────────────────────
KERNELS = CpuOps("float64")._kernels
FUSED = KERNELS.family != "x86-64-v2"
LESS = 1 if FUSED else 3  # bounds are wider without fused multiply-adds


def units(got, wanted):
    """The greatest error, in units in the last place of the wanted number."""
    return float(np.max(np.abs(got.astype(np.longdouble) - wanted) / np.spacing(np.abs(wanted.astype(np.float64)))))


def call(name, x):
    y = np.empty_like(x)
    getattr(KERNELS, name)(x, y, x.size)
    return y


def test_the_errors_of_exponentials_and_logarithms():
    random = np.random.default_rng(5)
    x = np.concatenate([random.uniform(-708, 709, 100_003), random.uniform(-1, 1, 100_000)])
    assert units(call("exp", x), np.exp(x.astype(np.longdouble))) < LESS
    x = np.concatenate([np.exp(random.uniform(-744, 709, 100_003)), random.uniform(0.5, 2, 100_000)])
    assert units(call("log", x), np.log(x.astype(np.longdouble))) < 0.55 * LESS


def test_special_values_are_those_of_c():
    inf, nan, tiny = np.inf, np.nan, 5e-324
    x = np.array([0.0, -0.0, 1, -1, inf, -inf, nan, 710, -746, -744.5, 0.5, -2, tiny, 1e308, 3, -3, 2.5])
    with np.errstate(all="ignore"):
        assert np.allclose(call("exp", x), np.exp(x), rtol=1e-15, atol=tiny, equal_nan=True)
        assert np.allclose(call("log", x), np.log(x), rtol=1e-15, atol=0, equal_nan=True)
    assert call("exp", np.zeros(1)) == 1 and call("log", np.ones(1)) == 0
