"""Softmax and its cross-entropy, and losses of values: ``sources/loss.cu``."""

from ringtrain.ops.base import VALUE_LOSSES
from ringtrain.ops.cuda.device import THREADS, Device, row_threads

MOST_BLOCKS = 512  # of any device, so that the order of a sum is the same on all


def softmax(device: Device, x_NK, y_NK):
    rows, classes = x_NK.shape
    if rows:
        _rows(device, "softmax", rows, classes, x_NK, y_NK, classes)


def softmax_cross_entropy(
    device: Device, x_NK, labels_N, dx_NK, totals_3, scale, smoothing=0.0, ignore=-1, factor_1=None
):
    rows, classes = x_NK.shape
    if not rows:
        return
    results = device.scratch("results of rows", (3, rows), "float64")
    arguments = x_NK, labels_N, dx_NK, results, totals_3, device.tickets(1)
    _rows(device, "cross_entropy", rows, classes, *arguments, rows, classes, scale, smoothing, ignore, factor_1)


def value_loss(device: Device, kind, x_N, labels_N, dx_N, totals_3, scale, delta=1.0, factor_1=None):
    if not x_N.size:
        return
    blocks = min(MOST_BLOCKS, -(-x_N.size // THREADS))
    results = device.scratch("results of blocks", (3, blocks), "float64")
    kernel = device.kernels("loss", "class_values" if labels_N.dtype == "int32" else "values")
    arguments = VALUE_LOSSES.index(kind), x_N, labels_N, dx_N, results, totals_3, device.tickets(1)
    kernel(blocks, THREADS, device.stream, *arguments, x_N.size, scale, delta, factor_1)


def mix_totals(device: Device, a_3, b_3, totals_3, share):
    device.kernels("loss", "mix_totals")(1, 1, device.stream, a_3, b_3, totals_3, share)


def _rows(device: Device, function, rows, classes, *arguments):
    device.kernels("loss", function)(rows, row_threads(classes), device.stream, *arguments)
