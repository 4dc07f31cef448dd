"""Convolution on the CPU by its compiled kernels: many shapes against float64, threads, and numbers that are none."""

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cpu import CpuOps, conv
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import as_float64, convolution_calls, perform

TOLERANCE = {"float32": 2e-6, "float64": 1e-13}  # of the largest element
# n h w c k, kernel stride pad groups
SHAPES = [
    (2, 8, 8, 16, 32, 3, 1, 1, 1), (3, 7, 5, 3, 17, 3, 1, 1, 1), (1, 13, 13, 23, 20, 3, 1, 1, 1),
    (2, 9, 11, 17, 50, 5, 1, 2, 1), (2, 12, 12, 20, 50, 5, 1, 0, 1), (3, 28, 28, 1, 20, 5, 1, 0, 1),
    (2, 16, 16, 3, 64, 5, 1, 2, 1), (2, 6, 6, 8, 8, 3, 2, 1, 1), (2, 7, 9, 5, 10, 3, 2, 1, 1),
    (2, 8, 8, 16, 33, 3, 2, 0, 1), (1, 15, 14, 3, 7, 7, 2, 3, 1), (1, 35, 27, 3, 96, 11, 4, 0, 1),
    (2, 23, 23, 3, 12, 11, 4, 2, 1), (2, 10, 10, 4, 6, 3, 3, 1, 1), (1, 12, 13, 9, 3, 4, 3, 2, 1),
    (2, 8, 8, 16, 24, 1, 1, 0, 1), (2, 8, 8, 17, 40, 1, 2, 0, 1), (3, 9, 7, 6, 5, 1, 3, 0, 1),
    (2, 5, 6, 3, 1, 1, 1, 0, 1), (1, 9, 9, 10, 9, 1, 4, 0, 1), (2, 6, 6, 5, 4, 1, 1, 2, 1),
    (2, 6, 5, 7, 9, 2, 1, 1, 1), (2, 9, 8, 3, 5, 2, 2, 0, 1), (1, 11, 10, 12, 13, 4, 2, 1, 1),
    (1, 8, 8, 6, 8, 6, 1, 3, 1), (1, 9, 9, 8, 4, 7, 1, 3, 1), (1, 10, 10, 5, 18, 8, 2, 4, 1),
    (1, 13, 12, 4, 6, 9, 3, 4, 1), (1, 12, 12, 3, 5, 10, 1, 5, 1), (1, 13, 13, 2, 3, 11, 1, 5, 1),
    (2, 4, 4, 3, 5, 2, 1, 3, 1), (2, 3, 3, 2, 4, 3, 2, 4, 1), (1, 2, 3, 5, 6, 3, 1, 3, 1),
    (2, 8, 8, 12, 20, 3, 1, 1, 2), (2, 9, 9, 12, 36, 5, 1, 2, 4), (3, 7, 7, 10, 30, 3, 2, 1, 5),
    (2, 6, 6, 8, 8, 3, 1, 1, 8), (2, 8, 7, 6, 12, 1, 2, 0, 3), (2, 8, 8, 34, 46, 1, 1, 0, 2),
    (2, 5, 5, 3, 6, 3, 1, 2, 3), (0, 8, 8, 5, 6, 3, 1, 1, 1), (9, 4, 4, 70, 100, 3, 1, 1, 1),
    (1, 1, 1, 40, 90, 3, 1, 1, 1), (2, 40, 30, 3, 8, 3, 4, 1, 1), (5, 17, 17, 6, 150, 3, 1, 1, 1),
]  # fmt: skip


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """All shapes go the direct way: Winograd's is tested apart."""
    monkeypatch.setattr(conv, "algorithm", lambda *arguments: "direct")


def calls_of(shape, dtype, relu=True, accumulate=True):
    *sizes, kernel, stride, pad, groups = shape
    sizes.append(ConvGeometry(kernel, stride, pad, groups))
    return list(convolution_calls(dtype, sizes, relu, accumulate, dtype))


def results(ops, calls):
    """y, dx, dw and db."""
    forward, back = (perform(ops, call) for call in calls)
    return forward | back


def wanted(calls):
    return results(ReferenceOps("float64"), map(as_float64, calls))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_agrees_with_float64(shape, dtype):
    for relu, accumulate in ((True, True), (False, False)):
        calls = calls_of(shape, dtype, relu, accumulate)
        got = results(CpuOps(dtype, 1), calls)
        for name, value in wanted(calls).items():
            off = np.abs(got[name] - value).max(initial=0)
            assert off <= TOLERANCE[dtype] * np.abs(value).max(initial=0), (name, relu, off)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_do_not_change_a_bit(dtype):
    for shape in SHAPES:
        one, *others = (results(CpuOps(dtype, threads), calls_of(shape, dtype)) for threads in (1, 2, 3))
        for other in others:
            assert all(other[name].tobytes() == one[name].tobytes() for name in one), shape


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [3, 9])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("array", ["x_NHWC", "w_RSCK", "dy_NPQK"])
def test_what_is_no_number_goes_where_its_products_go_and_no_further(array, value, channels, stride):
    calls = calls_of((2, 9, 9, channels, 20, 3, stride, 1, 1), "float32", relu=False)
    wrong = calls[1].inputs[array]
    wrong[tuple(extent // 2 for extent in wrong.shape)] = value  # the tap in the middle meets no padding
    with np.errstate(invalid="ignore"):
        got, expected = results(CpuOps("float32"), calls), wanted(calls)
    for name, right in expected.items():
        assert (np.isnan(got[name]) == np.isnan(right)).all(), name
        assert (np.isinf(got[name]) == np.isinf(right)).all(), name
        finite = np.isfinite(right)
        assert np.allclose(got[name][finite], right[finite], atol=1e-4), name


def test_the_workspace_grows_with_the_shape_alone():
    ops = CpuOps("float32", 2)
    sizes = []
    for _ in range(3):
        for shape in SHAPES[:6]:
            results(ops, calls_of(shape, "float32", accumulate=False))
        sizes.append(ops.workspace_bytes)
    assert 0 < sizes[1] == sizes[2]
