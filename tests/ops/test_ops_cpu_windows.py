"""Windows, larger images and depthwise convolution on the CPU: bits depend neither on threads nor on other examples."""

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cpu import CpuOps
from tests.ops.cases import perform
from tests.ops.kernel_bits import all_calls

OPERATIONS = (
    "columns", "columns_back", "bias_back", "upsample", "upsample_back", "depthwise_line", "depthwise_line_back"
)  # fmt: skip


@pytest.fixture(scope="module")
def alone_and_several():
    return CpuOps("float32", 1), CpuOps("float32", 3)


def test_threads_change_no_bit(alone_and_several):
    one, three = alone_and_several
    calls = [call for dtype, call in all_calls() if dtype == "float32"]
    calls = [call for call in calls if call.operation in OPERATIONS or _depthwise(call)]
    assert {call.operation for call in calls} == {*OPERATIONS, "conv2d", "conv2d_back"}
    for call in calls:
        wanted, got = perform(one, call), perform(three, call)
        assert all(got[name].tobytes() == wanted[name].tobytes() for name in wanted), str(call)


def _depthwise(call) -> bool:
    return call.operation.startswith("conv2d") and call.rest["geometry"].groups == call.inputs["x_NHWC"].shape[3]


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
