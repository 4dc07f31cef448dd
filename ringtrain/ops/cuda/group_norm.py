"""Normalisation of each example by itself: ``sources/group_norm.cu``."""

from ringtrain.ops.cuda.device import THREADS, Device

WARP, ROW_BLOCK, FEW = 32, 256, 4  # threads of a block, and elements of a thread at the least
COLUMNS, LANES = 32, 8  # as in the source
SLICE_ROWS, MOST_SLICES = 256, 256  # of the sums over rows: by sizes alone, so that all devices add in one order


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
    threads, groups = WARP, mean_NG.shape[1]
    while threads < ROW_BLOCK and threads * FEW < pixels * channels // groups:
        threads *= 2
    if mean_NG.size:
        kernel = device.kernels("group_norm", function)
        kernel(mean_NG.size, threads, device.stream, *arrays, pixels, channels, groups, *eps)
