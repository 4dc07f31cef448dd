"""Convolution on the CPU, by the kernels of ``sources/conv_*.cpp``."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.ops.cpu.library import CpuKernels
from ringtrain.ops.cpu.way import way


@dataclass(frozen=True, slots=True)
class ConvolutionKernels:
    """The kernels of a convolution. ``shape``: its sizes, which they read as ``struct Convolution``."""

    shape: np.ndarray
    forward: Callable
    back: Callable
    weights: Callable


class CpuConvolution:
    """Convolution on the CPU, and its gradients."""

    def __init__(self, kernels: CpuKernels, dtype: np.dtype):
        self._kernels, self._dtype = kernels, dtype
        self._plans: dict[tuple, ConvolutionKernels] = {}
        self._lines: dict[tuple, np.ndarray] = {}

    def forward(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu):
        plan = self._plan(x_NHWC, w_RSCK, y_NPQK, geometry)
        plan.forward(x_NHWC, w_RSCK, b_K, y_NPQK, plan.shape, relu)

    def back(self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu, accumulate):
        plan = self._plan(x_NHWC, w_RSCK, y_NPQK, geometry)
        if relu or db_K is not None:
            self._kernels.unfinish(dy_NPQK, y_NPQK, db_K, dy_NPQK.size, w_RSCK.shape[3], relu, accumulate)
        plan.weights(x_NHWC, dy_NPQK, dw_RSCK, plan.shape, accumulate)
        if dx_NHWC is not None:
            plan.back(dy_NPQK, w_RSCK, dx_NHWC, plan.shape)

    # ── along a line: an image of one row, which is not padded above and below ───────────────────────────────
    def line(self, x_NLC, w_SC, b_C, y_NPC, geometry, relu):
        self._kernels.depthwise_forward(x_NLC, w_SC, b_C, y_NPC, self._line(x_NLC, geometry), relu)

    def line_back(self, x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu, accumulate):
        sizes = self._line(x_NLC, geometry)
        if relu or db_C is not None:
            self._kernels.unfinish(dy_NPC, y_NPC, db_C, dy_NPC.size, w_SC.shape[1], relu, accumulate)
        self._kernels.depthwise_weights(x_NLC, dy_NPC, dw_SC, sizes, accumulate)
        if dx_NLC is not None:
            self._kernels.depthwise_back(dy_NPC, w_SC, dx_NLC, sizes)

    def _line(self, x_NLC, geometry) -> np.ndarray:
        key = x_NLC.shape, geometry
        if key not in self._lines:
            n, length, c = x_NLC.shape
            extents = n, 1, length, c, 1, geometry.output(length), c, 1, geometry.kernel
            self._lines[key] = np.array((*extents, geometry.stride, geometry.pad, c, 0), np.int64)
        return self._lines[key]

    def _plan(self, x_NHWC, w_RSCK, y_NPQK, geometry) -> ConvolutionKernels:
        key = (x_NHWC.shape, w_RSCK.shape, geometry)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(x_NHWC.shape, w_RSCK.shape, y_NPQK.shape, geometry)
        return plan

    def _make(self, x_shape, w_shape, y_shape, geometry) -> ConvolutionKernels:
        forth, back = (way(geometry, x_shape, y_shape, self._dtype, to_inputs) for to_inputs in (False, True))
        names = f"{forth}_forward", f"{back}_back", f"{forth}_weights"
        (r, s), (p, q, k) = w_shape[:2], y_shape[1:]
        extents = *x_shape, p, q, k, r, s, geometry.stride, geometry.pad, geometry.groups, geometry.pad
        return ConvolutionKernels(np.array(extents, np.int64), *(getattr(self._kernels, name) for name in names))
