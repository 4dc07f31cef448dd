"""Bias, ReLU and batch normalisation on the CPU: :mod:`.kernels.channels` and the scratch it needs."""

import numpy as np

from ringtrain.ops.cpu.kernels import channels as kernels
from ringtrain.ops.cpu.kernels import elementwise
from ringtrain.ops.cpu.scratch import Scratch, aligned


class CpuChannels:
    """Bias, ReLU and batch normalisation on the CPU."""

    def __init__(self, dtype, scratch: Scratch):
        self._dtype, self._scratch = dtype, scratch
        self._zero = np.zeros((), dtype)
        self._wides: dict = {}

    def finish(self, y, b_K, relu):
        """y += b, and max(·, 0) with ``relu``; b may be None. y is flat."""
        if b_K is not None:
            wide, _, width = self._wide(b_K.size)
            kernels.add_bias(y, b_K, wide, width, relu)
        elif relu:
            np.maximum(y, self._zero, out=y)

    def unfinish(self, dy, y, db_K, relu, accumulate):
        """Mask dy by y > 0 with ``relu``, in place; db = sum of dy over rows, or is None. Flat arrays."""
        if db_K is not None:
            wide, totals, width = self._wide(db_K.size)
            kernels.bias_back(dy, y, db_K, wide, totals, width, relu, accumulate)
        elif relu:
            elementwise.relu_back(y, dy, dy)

    def batch_norm(self, x, gamma_C, beta_C, y, mean_GC, var_GC, ghost, eps, relu):
        wide, totals, width = self._wide(gamma_C.size)
        for g, start in enumerate(range(0, len(x), ghost)):
            part, out = x[start : start + ghost].reshape(-1), y[start : start + ghost].reshape(-1)
            kernels.moments(part, mean_GC[g], var_GC[g], wide, totals, width)
            kernels.normalise(part, out, gamma_C, beta_C, mean_GC[g], var_GC[g], eps, wide, width, relu)

    def batch_norm_fixed(self, x, gamma_C, beta_C, mean_C, var_C, y, eps, relu):
        wide, _, width = self._wide(gamma_C.size)
        flat, out = x.reshape(-1), y.reshape(-1)
        kernels.normalise(flat, out, gamma_C, beta_C, mean_C, var_C, eps, wide, width, relu)

    def batch_norm_back(self, x, gamma_C, y, mean_GC, var_GC, dy, dgamma_C, dbeta_C, dx, ghost, eps, relu, accumulate):
        wide, totals, width = self._wide(gamma_C.size)
        sums = self._scratch("norm sums", 2 * gamma_C.size, np.float64)[: 2 * gamma_C.size]
        sums.fill(0)
        sums = sums.reshape(2, -1)
        for g, start in enumerate(range(0, len(x), ghost)):
            part = slice(start, start + ghost)
            x_g, y_g, dy_g = (a[part].reshape(-1) for a in (x, y, dy))
            kernels.gradient_sums(x_g, y_g, dy_g, mean_GC[g], wide, totals, width, relu)
            kernels.add_gradients(totals, var_GC[g], sums[0], sums[1], eps)
            if dx is not None:
                given = x_g, dy_g, gamma_C, mean_GC[g], var_GC[g]
                kernels.input_gradient(*given, totals, gamma_C.size / x_g.size, dx[part].reshape(-1), eps, wide, width)
        kernels.store(sums[0], dgamma_C, accumulate)
        kernels.store(sums[1], dbeta_C, accumulate)

    def batch_moments(self, x, moments_2C):
        if not x.size:
            moments_2C.fill(0)
            return
        wide, totals, width = self._wide(x.shape[-1])
        kernels.moments(x.reshape(-1), moments_2C[0], moments_2C[1], wide, totals, width)

    def batch_norm_sums(self, x, y, mean_C, dy, sums_2C, relu):
        wide, _, width = self._wide(mean_C.size)
        kernels.gradient_sums(x.reshape(-1), y.reshape(-1), dy.reshape(-1), mean_C, wide, sums_2C, width, relu)

    def batch_norm_dx(self, x, gamma_C, mean_C, var_C, dy, sums_2C, count, dx, eps):
        wide, _, width = self._wide(gamma_C.size)
        given = x.reshape(-1), dy.reshape(-1), gamma_C, mean_C, var_C
        kernels.input_gradient(*given, sums_2C, 1.0 / count, dx.reshape(-1), eps, wide, width)

    def batch_norm_shares(self, x, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate):
        pixels = 1
        for extent in x.shape[1:-1]:
            pixels *= extent
        kernels.shares(mean_GC, var_GC, len(x), pixels, ghost, total, mean_C, var_C, accumulate)

    def _wide(self, channels):
        """Return (rows of widened values [4, width], float64 totals [2, channels], width), uninitialised."""
        held = self._wides.get(channels)
        if held is None:
            width = kernels.wide_row(channels)
            held = aligned((4, width), self._dtype), aligned((2, channels), np.float64), width
            self._wides[channels] = held
        return held
