"""Batch normalisation: ``sources/norm.cu`` and ``sources/norm_back.cu``.

Memory traffic, in arrays of activations: of the statistics 1, or none where a convolution has measured them; 2 of the
normalisation, 3 with a sum, or none where the next convolution does it; 5 backward (x and dy for the sums; x, dy, dx).
Where dy counts is found again from x; after a sum there are bits of it, and the masked dy is written: 1 more. A kernel
gets the arrays that it reads or writes, and null for others.
"""

import numpy as np

from ringtrain.ops.cuda.channels import channel_columns, finish, launch
from ringtrain.ops.cuda.columns import CudaColumns, channel_vector, tile_columns
from ringtrain.ops.cuda.device import Device

PLAIN, KEPT, SIGN, BITS = range(4)  # where dy counts: see sources/sums.cuh
OF_TILES = 64  # rows of the smallest tile; there may be an even number of tiles


class CudaBatchNorm:
    """Batch normalisation. Sums are made in two steps, each group's in an order that depends only on the group's sizes:
    the bits do not depend on the group's position in the batch, or on the number of groups.
    """

    def __init__(self, device: Device):
        self._device = device

    # ── in steps ──────────────────────────────────────────────────────────────────────────────────────────────
    def moment_parts(self, shape, ghost):
        rows, channels = _rows(shape), shape[-1]
        group_rows = min(ghost * rows // max(1, shape[0]), rows)
        groups, slices = -(-rows // max(1, group_rows)), 2 * -(-group_rows // (2 * OF_TILES))
        return groups * slices * 2 * channels

    def positive_bytes(self, shape):
        return _rows(shape) * shape[-1] // channel_vector(shape[-1], self._device.active.itemsize)

    def norm_statistics(self, x_NHWC, statistics, moments=None):
        if not x_NHWC.size:
            return
        s, base = statistics, x_NHWC
        if moments is None:
            columns, partial = measure(self._device, x_NHWC, s.ghost)
        else:
            columns = channel_columns(self._device, x_NHWC, groups_of=s.ghost)
            sizes = columns.rows, columns.group_rows, columns.channels
            columns = tile_columns(*sizes, moments.slice_rows, moments.slices)
            partial, base = moments.parts, None
        finish(self._device, "norm", "finish_moments", columns, base, partial, s.gamma, s.mean, s.var, s.scale, s.eps)

    def normalise(self, x_NHWC, statistics, y_NHWC, a_NHWC=None, positive=None, relu=False):
        s = statistics
        self._normalise(x_NHWC, a_NHWC, s.gamma, s.beta, s.mean, s.var, y_NHWC, positive, s.eps, relu, s.ghost)

    def normalise_back(
        self, x_NHWC, statistics, dy_NHWC, dgamma_C, dbeta_C, mean_C, var_C, dx_NHWC, total,
        positive=None, relu=False, accumulate=False,
    ):  # fmt: skip
        outputs = dgamma_C, dbeta_C, mean_C, var_C
        if not x_NHWC.size:
            for array in () if accumulate else outputs:
                self._device.runtime.clear(array, self._device.stream)
            return
        s, mask = statistics, BITS if positive is not None else SIGN if relu else PLAIN
        columns = channel_columns(self._device, x_NHWC, dy_NHWC, positive, dx_NHWC, groups_of=s.ghost)
        totals, levels = self._totals(columns.groups, columns.channels)
        pixels = columns.rows // x_NHWC.shape[0]
        self._sums(
            columns, mask, x_NHWC, None, positive, dy_NHWC, s.gamma, s.beta, s.mean, s.var, s.eps,
            totals, levels, *outputs, 1 / (pixels * total), accumulate,
        )  # fmt: skip
        if dx_NHWC is not None:
            given = x_NHWC, dy_NHWC, s.gamma, s.beta, s.mean, s.var, levels, dx_NHWC, s.eps
            self._launch_back("input_gradient", mask, columns, *given)

    # ── by given statistics, and by those of several ranks ────────────────────────────────────────────────────
    def batch_norm_fixed(self, x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps, relu=False):
        self._normalise(x_NHWC, None, gamma_C, beta_C, mean_C, var_C, y_NHWC, None, eps, relu)

    def batch_norm_fixed_add(self, x_NHWC, gamma_C, beta_C, a_NHWC, mean_C, var_C, y_NHWC, eps, relu=False):
        self._normalise(x_NHWC, a_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, None, eps, relu)

    def batch_moments(self, x_NHWC, moments_2C):
        if x_NHWC.size:
            columns, partial = measure(self._device, x_NHWC)
            finish(self._device, "norm", "finish_moments_float64", columns, x_NHWC, partial, moments_2C)
        else:
            self._device.runtime.clear(moments_2C, self._device.stream)

    def batch_norm_sums(self, x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False):
        if x_NHWC.size:
            columns, y = channel_columns(self._device, x_NHWC, y_NHWC, dy_NHWC), y_NHWC if relu else None
            mask, none = KEPT if relu else PLAIN, [None] * 5
            self._sums(
                columns, mask, x_NHWC, y, None, dy_NHWC, None, None, mean_C, None, 0.0, sums_2C, *none, 0.0, False
            )
        else:
            self._device.runtime.clear(sums_2C, self._device.stream)

    def batch_norm_dx(self, x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, eps):
        if not x_NHWC.size:
            return
        columns = channel_columns(self._device, x_NHWC, dy_NHWC, dx_NHWC)
        _, levels = self._totals(1, columns.channels)
        kernel = self._device.kernels("norm_back", "levels_of_totals", MASKED_BY=PLAIN)
        self._device.each(kernel, columns.channels, sums_2C, var_C, levels, columns.channels, count, eps)
        given = x_NHWC, dy_NHWC, gamma_C, None, mean_C, var_C, levels, dx_NHWC, eps
        self._launch_back("input_gradient", PLAIN, columns, *given)

    # ── kernels ───────────────────────────────────────────────────────────────────────────────────────────────
    def _normalise(self, x, a, gamma, beta, mean, var, y, positive, eps, relu, ghost=None):
        if x.size:
            columns = channel_columns(self._device, x, a, y, positive, groups_of=ghost)
            launch(self._device, "norm", "normalise", columns, x, a, gamma, beta, mean, var, y, positive, eps, relu)

    def _totals(self, groups: int, channels: int):
        device = self._device
        totals = device.scratch("norm totals", groups * 2 * channels, np.float64)
        return totals, device.scratch("norm levels", groups * 2 * channels, device.real)

    def _sums(self, columns, mask, x, y, bits, dy, gamma, beta, mean, var, eps, totals, levels, *rest):
        *outputs, weight, accumulate = rest
        device, (_, across) = self._device, columns.blocks
        partial = device.scratch("sums of slices", columns.partial(2), device.real)
        tickets = device.tickets((columns.groups + 1) * across)
        given = x, y, bits, dy, gamma, beta, mean, var, partial, tickets, totals, levels, *outputs, weight, accumulate
        self._launch_back("gradient_sums", mask, columns, *given, eps)

    def _launch_back(self, function: str, mask: int, columns: CudaColumns, *arguments):
        kernel = self._device.kernels("norm_back", function, MASKED_BY=mask)
        kernel(columns.blocks, columns.threads, self._device.stream, *arguments, *columns.cut, columns.wide)


def measure(device: Device, x, ghost: int | None = None):
    """Make the moments of slices of each ghost batch, or of all examples; returns the slices, and them."""
    columns = channel_columns(device, x, groups_of=ghost)
    partial = device.scratch("sums of slices", columns.partial(2), device.real)
    launch(device, "norm", "moments", columns, x, partial)
    return columns, partial


def _rows(shape) -> int:
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    return rows
