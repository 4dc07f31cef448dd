"""Convolution on the CPU, by the kernels of ``sources/conv_*.cpp``."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ringtrain.ops.base import ConvGeometry
from ringtrain.ops.cpu.library import Kernels
from ringtrain.ops.cpu.way import way


@dataclass(frozen=True)
class ConvShape:
    """The sizes of a convolution, which the kernels read as ``struct Convolution``."""

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    geometry: ConvGeometry

    @cached_property
    def array(self) -> np.ndarray:
        (r, s), (p, q, k) = self.w_shape[:2], self.y_shape[1:]
        geometry = self.geometry
        return np.array([*self.x_shape, p, q, k, r, s, geometry.stride, geometry.pad, geometry.groups], np.int64)


class CpuConvolution:
    """Convolution on the CPU, and its gradients."""

    def __init__(self, kernels: Kernels, dtype: np.dtype):
        self._kernels, self._dtype = kernels, dtype
        self._plans: dict = {}

    def forward(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu):
        shape, (forward, _, _) = self._plan(x_NHWC, w_RSCK, y_NPQK, geometry)
        forward(x_NHWC, w_RSCK, b_K, y_NPQK, shape, relu)

    def back(self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu, accumulate):
        shape, (_, back, weights) = self._plan(x_NHWC, w_RSCK, y_NPQK, geometry)
        if relu or db_K is not None:
            self._kernels.unfinish(dy_NPQK, y_NPQK, db_K, dy_NPQK.size, w_RSCK.shape[3], relu, accumulate)
        weights(x_NHWC, dy_NPQK, dw_RSCK, shape, accumulate)
        if dx_NHWC is not None:
            back(dy_NPQK, w_RSCK, dx_NHWC, shape)

    def _plan(self, x_NHWC, w_RSCK, y_NPQK, geometry):
        """Return the shape as an array, and the kernels: forward, back, weights."""
        key = (x_NHWC.shape, w_RSCK.shape, geometry)
        plan = self._plans.get(key)
        if plan is None:
            shape = ConvShape(x_NHWC.shape, w_RSCK.shape, y_NPQK.shape, geometry)
            chosen = way(geometry, x_NHWC.shape, y_NPQK.shape, self._dtype)
            names = (f"{chosen}_{name}" for name in ("forward", "back", "weights"))
            plan = self._plans[key] = shape.array, [getattr(self._kernels, name) for name in names]
        return plan
