"""Batch normalisation: ``sources/norm.cu`` and ``sources/norm_back.cu``.

Memory traffic, in arrays of activations: 3 forward (x for the statistics, x again, y), 5 backward (x and dy for the
sums, x, dy, dx), 7 with a ReLU (y for each mask: the masked dy is not stored). The slices' sums are less than a
hundredth of that except for few rows. A kernel gets the arrays that it reads or writes, and null for others.
"""

from ringtrain.ops.cuda.channels import KEPT, MASKED, PLAIN, channel_columns, finish, launch
from ringtrain.ops.cuda.device import Device

OWN_COUNT = 0  # of input_gradient: each group's own rows


class CudaBatchNorm:
    """Batch normalisation. Sums are made in two steps, each group's in an order that depends only on the group's sizes:
    the bits do not depend on the group's position in the batch, or on the number of groups.
    """

    def __init__(self, device: Device):
        self._device = device

    def batch_norm(self, x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost, eps, relu=False):
        if not x_NHWC.size:
            return
        columns = channel_columns(self._device, x_NHWC, y_NHWC, groups_of=ghost)
        self._moments("finish_moments", columns, x_NHWC, mean_GC, var_GC)
        given = x_NHWC, gamma_C, beta_C, mean_GC, var_GC
        launch(self._device, "norm", "normalise", columns, *given, y_NHWC, eps, relu)

    def batch_norm_back(
        self, x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps,
        relu=False, accumulate=False,
    ):  # fmt: skip
        groups, channels = mean_GC.shape
        totals = self._device.scratch("norm totals", (groups, 2, channels), "float64")
        if x_NHWC.size:
            columns = channel_columns(self._device, x_NHWC, y_NHWC, dy_NHWC, groups_of=ghost)
            self._sums(columns, x_NHWC, y_NHWC if relu else None, dy_NHWC, mean_GC, MASKED if relu else PLAIN, totals)
        rest = groups, channels, eps, accumulate
        self._each_channel("norm_back", "norm_gradients", channels, totals, var_GC, dgamma_C, dbeta_C, *rest)
        if dx_NHWC is not None:
            given = x_NHWC, y_NHWC if relu else None, dy_NHWC, gamma_C, mean_GC, var_GC, totals
            self._input_gradient(*given, dx_NHWC, eps, OWN_COUNT, ghost)

    def batch_norm_shares(self, x_NHWC, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate=False):
        groups, channels = mean_GC.shape
        pixels = 1
        for extent in x_NHWC.shape[1:-1]:
            pixels *= extent
        sizes = x_NHWC.shape[0] * pixels, pixels, ghost, groups, channels
        given = mean_GC, var_GC, mean_C, var_C
        self._each_channel("norm", "shares", channels, *given, *sizes, total, accumulate)

    def batch_norm_fixed(self, x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps, relu=False):
        if x_NHWC.size:
            columns = channel_columns(self._device, x_NHWC, y_NHWC)
            given = x_NHWC, gamma_C, beta_C, mean_C, var_C
            launch(self._device, "norm", "normalise", columns, *given, y_NHWC, eps, relu)

    def batch_moments(self, x_NHWC, moments_2C):
        if x_NHWC.size:
            self._moments("finish_moments_float64", channel_columns(self._device, x_NHWC), x_NHWC, moments_2C)
        else:
            self._device.runtime.clear(moments_2C, self._device.stream)

    def batch_norm_sums(self, x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False):
        if x_NHWC.size:
            columns = channel_columns(self._device, x_NHWC, y_NHWC, dy_NHWC)
            self._sums(columns, x_NHWC, y_NHWC if relu else None, dy_NHWC, mean_C, KEPT if relu else PLAIN, sums_2C)
        else:
            self._device.runtime.clear(sums_2C, self._device.stream)

    def batch_norm_dx(self, x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, eps):
        given = x_NHWC, None, dy_NHWC, gamma_C, mean_C, var_C, sums_2C
        self._input_gradient(*given, dx_NHWC, eps, count, None)

    def _moments(self, function, columns, x, *out):
        partial = self._device.scratch("sums of slices", columns.partial(2), self._device.real)
        launch(self._device, "norm", "moments", columns, x, partial)
        finish(self._device, "norm", function, columns, x, partial, *out)

    def _sums(self, columns, x, y, dy, mean, mask, totals):
        partial = self._device.scratch("sums of slices", columns.partial(2), self._device.real)
        launch(self._device, "norm_back", "gradient_sums", columns, x, y, dy, mean, partial, mask)
        finish(self._device, "norm_back", "finish_sums", columns, partial, totals)

    def _input_gradient(self, x, y, dy, gamma, mean, var, totals, dx, eps, count, ghost):
        """``y`` masks dy; None for no mask."""
        if x.size:
            columns = channel_columns(self._device, x, y, dy, dx, groups_of=ghost)
            given = x, y, dy, gamma, mean, var, totals
            launch(self._device, "norm_back", "input_gradient", columns, *given, dx, eps, count)

    def _each_channel(self, source, function, channels, *arguments):
        self._device.each(self._device.kernels(source, function), channels, *arguments)
