"""Normalisation of batches and of each example: ``sources/norm.cu``, ``norm_back.cu`` and ``group_norm.cu``.

Memory traffic of batches, in arrays of activations: of the statistics 1, or none where a convolution has measured them;
2 of the normalisation, 3 with a sum, or none where the next convolution does it; 5 backward (x and dy for the sums; x,
dy, dx). Where dy counts is found again from x; after a sum there are bits of it, and the masked dy is written: 1 more.
A kernel gets the arrays that it reads or writes, and null for others."""

import math

import numpy as np

from ringtrain.ops.cuda.channels import CudaColumns, channel_columns, channel_vector, finish, launch, tile_columns
from ringtrain.ops.cuda.device import THREADS, Device, row_threads

PLAIN, KEPT, SIGN, BITS = range(4)  # where dy counts: see sources/sums.cuh
OF_TILES = 64  # rows of the smallest tile; there may be an even number of tiles
COLUMNS, LANES = 32, 8  # as in the source
SLICE_ROWS, MOST_SLICES = 256, 256  # of the sums over rows: by sizes alone, so that all devices add in one order


# ── in steps ──────────────────────────────────────────────────────────────────────────────────────────────
def moment_parts(device: Device, shape, ghost):
    rows, channels = math.prod(shape[:-1]), shape[-1]
    group_rows = min(ghost * rows // max(1, shape[0]), rows)
    groups, slices = -(-rows // max(1, group_rows)), 2 * -(-group_rows // (2 * OF_TILES))
    return groups * slices * 2 * channels


def positive_bytes(device: Device, shape):
    return math.prod(shape) // channel_vector(shape[-1], device.active.itemsize)


def norm_statistics(device: Device, x_NHWC, statistics, moments=None):
    if not x_NHWC.size:
        return
    s, base = statistics, x_NHWC
    if moments is None:
        columns, partial = measure(device, x_NHWC, s.ghost)
    else:
        columns = channel_columns(device, x_NHWC, groups_of=s.ghost)
        sizes = columns.rows, columns.group_rows, columns.channels
        columns = tile_columns(*sizes, moments.slice_rows, moments.slices)
        partial, base = moments.parts, None
    finish(device, "norm", "finish_moments", columns, base, partial, s.gamma, s.mean, s.var, s.scale, s.eps)


def normalise(device: Device, x_NHWC, statistics, y_NHWC, a_NHWC=None, positive=None, relu=False):
    s = statistics
    _normalise(device, x_NHWC, a_NHWC, s.gamma, s.beta, s.mean, s.var, y_NHWC, positive, s.eps, relu, s.ghost)


def normalise_back(
    device: Device, x_NHWC, statistics, dy_NHWC, dgamma_C, dbeta_C, mean_C, var_C, dx_NHWC, total,
    positive=None, relu=False, accumulate=False,
):  # fmt: skip
    outputs = dgamma_C, dbeta_C, mean_C, var_C
    if not x_NHWC.size:
        for array in () if accumulate else outputs:
            device.runtime.clear(array, device.stream)
        return
    s, mask = statistics, BITS if positive is not None else SIGN if relu else PLAIN
    columns = channel_columns(device, x_NHWC, dy_NHWC, positive, dx_NHWC, groups_of=s.ghost)
    totals, levels = _totals(device, columns.groups, columns.channels)
    pixels = columns.rows // x_NHWC.shape[0]
    _sums(
        device, columns, mask, x_NHWC, None, positive, dy_NHWC, s.gamma, s.beta, s.mean, s.var, s.eps,
        totals, levels, *outputs, 1 / (pixels * total), accumulate,
    )  # fmt: skip
    if dx_NHWC is not None:
        arguments = x_NHWC, dy_NHWC, s.gamma, s.beta, s.mean, s.var, levels, dx_NHWC, s.eps
        _launch_back(device, "input_gradient", mask, columns, *arguments)


# ── by given statistics, and by statistics of several ranks ────────────────────────────────────────────────────
def batch_norm_fixed(device: Device, x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps, relu=False, a_NHWC=None):
    _normalise(device, x_NHWC, a_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, None, eps, relu)


def batch_moments(device: Device, x_NHWC, moments_2C):
    if x_NHWC.size:
        columns, partial = measure(device, x_NHWC)
        finish(device, "norm", "finish_moments_float64", columns, x_NHWC, partial, moments_2C)
    else:
        device.runtime.clear(moments_2C, device.stream)


def batch_norm_sums(device: Device, x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False):
    if x_NHWC.size:
        columns, y = channel_columns(device, x_NHWC, y_NHWC, dy_NHWC), y_NHWC if relu else None
        mask, none = KEPT if relu else PLAIN, [None] * 5
        _sums(
            device, columns, mask, x_NHWC, y, None, dy_NHWC, None, None, mean_C, None, 0.0, sums_2C, *none, 0.0, False
        )
    else:
        device.runtime.clear(sums_2C, device.stream)


def batch_norm_dx(device: Device, x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, eps):
    if not x_NHWC.size:
        return
    columns = channel_columns(device, x_NHWC, dy_NHWC, dx_NHWC)
    _, levels = _totals(device, 1, columns.channels)
    kernel = device.kernels("norm_back", "levels_of_totals", MASKED_BY=PLAIN)
    device.each(kernel, columns.channels, sums_2C, var_C, levels, columns.channels, count, eps)
    arguments = x_NHWC, dy_NHWC, gamma_C, None, mean_C, var_C, levels, dx_NHWC, eps
    _launch_back(device, "input_gradient", PLAIN, columns, *arguments)


# ── of each example by itself ──────────────────────────────────────────────────────────────────────────────
def group_norm(device: Device, x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG, eps):
    arrays = x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG
    _groups(device, "group_norm", x_NSC, mean_NG, *arrays, eps=(eps,))


def group_norm_back(
    device: Device, x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dgamma_C, dbeta_C, dx_NSC, accumulate=False
):
    (n, pixels, channels), groups = x_NSC.shape, mean_NG.shape[1]
    rows = n * pixels
    slice_rows = max(SLICE_ROWS, -(-rows // MOST_SLICES))
    slices = -(-rows // slice_rows)
    partial = device.scratch("sums of rows", (max(1, slices), 2, channels), "float64")
    if rows:
        arguments = x_NSC, mean_NG, inverse_NG, dy_NSC, partial, rows, slice_rows, pixels, channels, groups
        kernel, blocks = device.kernels("group_norm", "group_norm_sums"), (slices, -(-channels // COLUMNS))
        kernel(blocks, (COLUMNS, LANES), device.stream, *arguments)
    kernel = device.kernels("group_norm", "group_norm_gradients")
    sums = partial, dgamma_C, dbeta_C, slices, channels, accumulate
    kernel(-(-channels // THREADS), THREADS, device.stream, *sums)
    if dx_NSC is not None:
        arrays = x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dx_NSC
        _groups(device, "group_norm_back", x_NSC, mean_NG, *arrays)


def _groups(device: Device, function, x_NSC, mean_NG, *arrays, eps=()):
    """Launch a block for each group of each example."""
    pixels, channels = x_NSC.shape[1:]
    groups = mean_NG.shape[1]
    if mean_NG.size:
        kernel, threads = device.kernels("group_norm", function), row_threads(pixels * channels // groups)
        kernel(mean_NG.size, threads, device.stream, *arrays, pixels, channels, groups, *eps)


# ── kernels ───────────────────────────────────────────────────────────────────────────────────────────────
def _normalise(device: Device, x, a, gamma, beta, mean, var, y, positive, eps, relu, ghost=None):
    if x.size:
        columns = channel_columns(device, x, a, y, positive, groups_of=ghost)
        launch(device, "norm", "normalise", columns, x, a, gamma, beta, mean, var, y, positive, eps, relu)


def _totals(device: Device, groups: int, channels: int):
    totals = device.scratch("norm totals", groups * 2 * channels, np.float64)
    return totals, device.scratch("norm levels", groups * 2 * channels, device.real)


def _sums(device: Device, columns, mask, x, y, bits, dy, gamma, beta, mean, var, eps, totals, levels, *rest):
    *outputs, weight, accumulate = rest
    _, across = columns.blocks
    partial = device.scratch("sums of slices", columns.partial(2), device.real)
    tickets = device.tickets((columns.groups + 1) * across)
    arguments = x, y, bits, dy, gamma, beta, mean, var, partial, tickets, totals, levels, *outputs, weight, accumulate
    _launch_back(device, "gradient_sums", mask, columns, *arguments, eps)


def _launch_back(device: Device, function: str, mask: int, columns: CudaColumns, *arguments):
    kernel = device.kernels("norm_back", function, MASKED_BY=mask)
    kernel(columns.blocks, columns.threads, device.stream, *arguments, *columns.cut, columns.wide)


def measure(device: Device, x, ghost: int | None = None):
    """Make the moments of slices of each ghost batch, or of all examples; returns the slices, and them."""
    columns = channel_columns(device, x, groups_of=ghost)
    partial = device.scratch("sums of slices", columns.partial(2), device.real)
    launch(device, "norm", "moments", columns, x, partial)
    return columns, partial
