"""Elementwise operations. Arrays may be of any floating-point type, the same for all arrays of one operation."""

import numpy as np

from ringtrain.ops.cuda.signatures import C_TYPES


class Elementwise:
    """The elementwise operations."""

    def __init__(self, device):
        self._device = device

    def fill(self, x, value):
        bits = np.asarray(value).astype(x.dtype).tobytes()
        if not any(bits):
            self._device.runtime.clear(x, self._device.stream)
            return
        repeated = int.from_bytes((bits * 8)[:8], "little")
        nbytes = x.size * x.dtype.itemsize
        self._device.each(
            self._device.kernels.of(self._device.real)("fill", "fill"), nbytes, x, nbytes, repeated, per_thread=16
        )

    def copy(self, x, y):
        if x.dtype == y.dtype:
            self._device.runtime.copy(x, y, self._device.stream)
        else:
            self._cast(x, y)

    def _cast(self, x, y):
        wider = "float64" if "float64" in (x.dtype.name, y.dtype.name) else "float32"
        types = {"FROM": C_TYPES[x.dtype.name], "TO": C_TYPES[y.dtype.name]}
        self._each(self._device.kernels.of(wider)("cast", "cast", **types), x, x, y, x.size)

    def add(self, a, b, y, relu=False):
        self._each(self._kernel("add", y), y, a, b, y, y.size, relu)

    def scale(self, x, factor):
        given = (factor, None) if isinstance(factor, int | float | np.number) else (1.0, factor)
        self._each(self._kernel("scale", x), x, x, x.size, *given)

    def relu(self, x, y):
        self._each(self._kernel("relu", x), x, x, y, x.size)

    def relu_back(self, y, dy, dx):
        self._each(self._kernel("relu_back", y), y, y, dy, dx, y.size)

    def _kernel(self, name, x):
        return self._device.kernels.of(x.dtype)("elementwise", name)

    def _each(self, kernel, x, *arguments):
        self._device.each(kernel, x.size, *arguments, per_thread=16 // x.dtype.itemsize)
