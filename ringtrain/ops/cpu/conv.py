"""The kernels of convolutions on the CPU, ``sources/conv_*.cpp``, the choice among them, and the sizes that they read.

Winograd's algorithm multiplies less, but transforms more. Per tile of M × M outputs, M = 7 - kernel, it has 36 products
of c × k, and its transforms go with c + k; weights are transformed once. Both are counted in multiplications of the
direct algorithm. Measured on AVX2 (Zen 3, one thread, float32), an element of a tile's transforms, or of a weight's, is
worth about TRANSFORM of them, forward and back alike:

* 16 > 16 channels 3x3 @ 32 takes 0.65 of the direct time, 64 > 64 0.4, 512 > 512 @ 4 0.3; 5x5 32 > 32 @ 16 0.6.
* 12 > 12 3x3 and 8 > 16 5x5 @ 16 are draws, 3 > 16 3x3 takes twice the direct time.
* 512 > 512 @ 4 takes 1.3 of it with one image, 0.8 with four: the weights' transform. 64 > 64 @ 2 is a draw: one
  tile has 4 outputs instead of 16.

The gradient of the inputs has tiles of x, which are more where nothing is padded. float64 is for checks, which want
exact results.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.ops.cpu.library import CpuKernels
from ringtrain.ops.geometry import ConvGeometry

TRANSFORM = 12
TILE_INPUTS = 6


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
    forth, back = (algorithm(geometry, x_shape, y_shape, dtype, to_inputs) for to_inputs in (False, True))
    names = f"{forth}_forward", f"{back}_back", f"{forth}_weights"
    (r, s), (p, q, k) = w_shape[:2], y_shape[1:]
    extents = *x_shape, p, q, k, r, s, geometry.stride, geometry.pad, geometry.groups, geometry.pad
    return ConvolutionKernels(np.array(extents, np.int64), *(getattr(kernels, name) for name in names))


def line_sizes(x_shape: tuple[int, int, int], geometry: ConvGeometry) -> np.ndarray:
    """Return the sizes of a convolution along a line: an image of one row, which is not padded above and below."""
    n, length, c = x_shape
    extents = n, 1, length, c, 1, geometry.output(length), c, 1, geometry.kernel
    return np.array((*extents, geometry.stride, geometry.pad, c, 0), np.int64)


def algorithm(
    geometry: ConvGeometry, x_shape: tuple[int, ...], y_shape: tuple[int, ...], dtype, to_inputs=False
) -> str:
    """Return ``winograd``, ``direct`` or ``depthwise``, for y and dw, or with ``to_inputs`` for dx."""
    if 1 < geometry.groups == x_shape[3] == y_shape[3]:
        return "depthwise"
    kernel = geometry.kernel
    possible = kernel in (3, 5) and geometry.stride == 1 and geometry.pad < kernel and dtype == "float32"
    if not possible:
        return "direct"
    n, p, q, k = y_shape
    c, k = x_shape[3] // geometry.groups, k // geometry.groups
    outputs = TILE_INPUTS + 1 - kernel
    high, wide = x_shape[1:3] if to_inputs else (p, q)
    tiles = n * -(-high // outputs) * -(-wide // outputs)
    direct = n * p * q * kernel**2 * c * k
    winograd = TILE_INPUTS**2 * (tiles * (c * k + TRANSFORM * (c + k)) + TRANSFORM * c * k)
    return "winograd" if winograd < direct else "direct"
