"""The kernels of convolutions on the CPU, and the sizes that they read: ``sources/conv_*.cpp``."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.ops.cpu.library import CpuKernels
from ringtrain.ops.cpu.way import way
from ringtrain.ops.geometry import ConvGeometry


@dataclass(frozen=True, slots=True)
class ConvolutionKernels:
    """The kernels of a convolution. ``shape``: its sizes, which they read as ``struct Convolution``."""

    shape: np.ndarray
    forward: Callable
    back: Callable
    weights: Callable


def choose_kernels(
    kernels: CpuKernels, dtype: np.dtype, x_shape: tuple, w_shape: tuple, y_shape: tuple, geometry: ConvGeometry
) -> ConvolutionKernels:
    forth, back = (way(geometry, x_shape, y_shape, dtype, to_inputs) for to_inputs in (False, True))
    names = f"{forth}_forward", f"{back}_back", f"{forth}_weights"
    (r, s), (p, q, k) = w_shape[:2], y_shape[1:]
    extents = *x_shape, p, q, k, r, s, geometry.stride, geometry.pad, geometry.groups, geometry.pad
    return ConvolutionKernels(np.array(extents, np.int64), *(getattr(kernels, name) for name in names))


def line_sizes(x_shape: tuple[int, int, int], geometry: ConvGeometry) -> np.ndarray:
    """Return the sizes of a convolution along a line: an image of one row, which is not padded above and below."""
    n, length, c = x_shape
    extents = n, 1, length, c, 1, geometry.output(length), c, 1, geometry.kernel
    return np.array((*extents, geometry.stride, geometry.pad, c, 0), np.int64)
