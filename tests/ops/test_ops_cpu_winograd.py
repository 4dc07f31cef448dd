"""The kernels of Winograd's convolutions: each against the reference in float64, on awkward shapes."""

import numpy as np
import pytest

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cpu.conv import algorithm
from ringtrain.ops.cpu.library import CpuKernels
from ringtrain.ops.reference import conv as reference

TOLERANCE = {"float32": 2e-5, "float64": 1e-13}  # of the largest element
SHAPES = {  # images, height, width, channels, features; kernel, pad, groups
    "whole tiles": (2, 8, 8, 16, 16, 3, 1, 1),
    "one tile": (1, 4, 4, 64, 64, 3, 1, 1),
    "less than a tile": (3, 1, 2, 3, 5, 3, 1, 1),
    "odd channels": (3, 7, 9, 17, 20, 3, 1, 1),
    "no pad": (2, 5, 9, 23, 50, 3, 0, 1),
    "pad 2": (2, 5, 6, 17, 17, 3, 2, 1),
    "groups": (2, 13, 13, 48, 64, 3, 1, 2),
    "groups of odd channels": (2, 6, 7, 51, 60, 3, 1, 3),
    "depthwise": (2, 6, 7, 4, 4, 3, 1, 4),
    "blocks of channels": (2, 5, 6, 200, 136, 3, 1, 1),
    "blocks of tiles": (1, 40, 33, 32, 32, 3, 1, 1),
    "blocks of both, weights made anew": (3, 17, 30, 260, 180, 3, 1, 1),
    "no images": (0, 8, 8, 16, 16, 3, 1, 1),
    "5x5": (2, 9, 7, 20, 50, 5, 2, 1),
    "5x5, no pad": (1, 6, 11, 50, 23, 5, 0, 1),
    "5x5, pad 1": (2, 7, 5, 20, 17, 5, 1, 1),
    "5x5, pad 4": (2, 5, 6, 40, 48, 5, 4, 1),
    "5x5, groups": (2, 27, 13, 96, 64, 5, 2, 2),
    "5x5, one pixel": (2, 1, 1, 3, 4, 5, 2, 1),
    "5x5, no images": (0, 8, 8, 16, 16, 5, 2, 1),
}


class Case:
    """The arrays of a convolution."""

    def __init__(self, shape, dtype="float32"):
        n, h, w, c, k, kernel, pad, groups = shape
        self.geometry = ConvGeometry(kernel, 1, pad, groups)
        p, q = self.geometry.output(h), self.geometry.output(w)
        self.sizes = np.array([n, h, w, c, p, q, k, kernel, kernel, 1, pad, groups, pad])
        generator = np.random.default_rng(0)

        def draw(*shape):
            return generator.standard_normal(shape, np.float32).astype(dtype)

        self.x, self.w, self.b = draw(n, h, w, c), draw(kernel, kernel, c // groups, k), draw(k)
        self.dy, self.dw = draw(n, p, q, k), draw(kernel, kernel, c // groups, k)

    def run(self, threads=1):
        """(y, y with bias and ReLU, dx, dw, dw added to what was there)"""
        kernels = CpuKernels(self.x.dtype, threads)
        y, y_relu, dx = np.full_like(self.dy, 7), np.full_like(self.dy, 7), np.full_like(self.x, 7)
        dw, dw_added = np.full_like(self.w, 7), self.dw.copy()
        kernels.winograd_forward(self.x, self.w, None, y, self.sizes, False)
        kernels.winograd_forward(self.x, self.w, self.b, y_relu, self.sizes, True)
        kernels.winograd_back(self.dy, self.w, dx, self.sizes)
        kernels.winograd_weights(self.x, self.dy, dw, self.sizes, False)
        kernels.winograd_weights(self.x, self.dy, dw_added, self.sizes, True)
        return y, y_relu, dx, dw, dw_added

    def expected(self):
        x, w, b, dy, dw_before = (each.astype("float64") for each in (self.x, self.w, self.b, self.dy, self.dw))
        y, y_relu, dx, dw = np.empty_like(dy), np.empty_like(dy), np.empty_like(x), np.empty_like(w)
        reference.conv2d(x, w, None, y, self.geometry, False)
        reference.conv2d(x, w, b, y_relu, self.geometry, True)
        reference.conv2d_back(x, w, y, dy, dw, None, dx, self.geometry, False, False)
        return y, y_relu, dx, dw, dw_before + dw


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_results_are_those_of_the_reference(shape, dtype):
    case = Case(shape, dtype)
    for got, expected in zip(case.run(), case.expected(), strict=True):
        error = np.abs(got - expected).max(initial=0)
        assert error <= TOLERANCE[dtype] * np.abs(expected).max(initial=0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_results_are_the_same_bits_for_any_number_of_threads(shape):
    case = Case(shape)
    one = case.run()
    for threads in (2, 3):
        for got, expected in zip(case.run(threads), one, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_second_call_allocates_nothing():
    case, kernels = Case(SHAPES["5x5, groups"]), CpuKernels(np.dtype("float32"), 2)
    y, dx, dw, view = np.empty_like(case.dy), np.empty_like(case.x), np.empty_like(case.w), []
    for _ in range(4):
        kernels.winograd_forward(case.x, case.w, None, y, case.sizes, False)
        kernels.winograd_back(case.dy, case.w, dx, case.sizes)
        kernels.winograd_weights(case.x, case.dy, dw, case.sizes, False)
        view.append(kernels.workspace_bytes)
    assert view[-1] == view[1]


def test_a_nan_reaches_all_that_sees_it():
    case = Case((2, 11, 9, 17, 20, 3, 1, 1))
    clean = case.run()
    case.x[0, 5, 6, 3] = case.dy[1, 2, 3, 4] = np.nan
    y, y_relu, dx, dw, dw_added = case.run()
    for result in (y, y_relu):
        assert np.isnan(result[0, 4:7, 5:8]).all()  # the windows that have it; others of its tile may be NaN too
        np.testing.assert_array_equal(result[1], clean[0 if result is y else 1][1])
    assert np.isnan(dx[1, 1:4, 2:5]).all() and not np.isnan(dx[0]).any()
    for result in (dw, dw_added):
        assert np.isnan(result[:, :, 3]).all() and np.isnan(result[..., 4]).all()


def test_arrays_are_neither_read_nor_written_beyond_their_ends():
    """Each array lies between NaNs: none may enter a sum, and all must stay."""
    case = Case((2, 5, 6, 17, 21, 3, 1, 1))
    clean = case.run()
    around = {}
    for name in ("x", "w", "b", "dy", "dw"):
        inside = getattr(case, name)
        around[name] = np.full(inside.size + 64, np.nan, inside.dtype)
        view = around[name][32 : 32 + inside.size].reshape(inside.shape)
        view[...] = inside
        setattr(case, name, view)
    for got, expected in zip(case.run(), clean, strict=True):
        np.testing.assert_array_equal(got, expected)
    kernels, dw, y = CpuKernels(case.x.dtype), case.dw, case.dy
    kernels.winograd_weights(case.x, case.dy, dw, case.sizes, True)
    np.testing.assert_array_equal(dw, clean[4])
    kernels.winograd_forward(case.x, case.w, case.b, y, case.sizes, True)
    np.testing.assert_array_equal(y, clean[1])
    for each in around.values():
        assert np.isnan(each[:32]).all() and np.isnan(each[-32:]).all()


@pytest.mark.parametrize(
    ("x", "k", "geometry", "dtype", "expected"),  # forward, and to inputs where that differs
    [
        ((128, 32, 32, 16), 16, ConvGeometry(3, 1, 1), "float32", "winograd"),
        ((32, 4, 4, 512), 512, ConvGeometry(3, 1, 1), "float32", "winograd"),
        ((100, 8, 8, 32), 64, ConvGeometry(5, 1, 2), "float32", "winograd"),
        ((16, 27, 27, 96), 256, ConvGeometry(5, 1, 2, 2), "float32", "winograd"),
        ((16, 27, 27, 96), 256, ConvGeometry(5, 1, 2, 2), "float64", "direct"),
        ((128, 32, 32, 3), 16, ConvGeometry(3, 1, 1), "float32", "direct"),
        ((32, 32, 32, 64), 128, ConvGeometry(3, 2, 1), "float32", "direct"),
        ((32, 32, 32, 64), 64, ConvGeometry(3, 1, 1, 64), "float32", "depthwise"),
        ((32, 32, 32, 64), 128, ConvGeometry(3, 2, 1, 64), "float32", "direct"),
        ((32, 8, 8, 64), 64, ConvGeometry(3, 1, 3), "float32", "direct"),
        ((1, 4, 4, 512), 512, ConvGeometry(3, 1, 1), "float32", "direct"),
        ((0, 4, 4, 512), 512, ConvGeometry(3, 1, 1), "float32", "direct"),
        ((32, 8, 8, 64), 128, ConvGeometry(1, 1, 0), "float32", "direct"),
        ((64, 12, 12, 20), 50, ConvGeometry(5), "float32", "winograd/direct"),  # whose inputs have more tiles
    ],
)
def test_the_algorithm_of_a_layer(x, k, geometry, dtype, expected):
    y = (x[0], geometry.output(x[1]), geometry.output(x[2]), k)
    names = [algorithm(geometry, x, y, np.dtype(dtype), to_inputs) for to_inputs in (False, True)]
    assert "/".join(dict.fromkeys(names)) == expected
