"""Operations that depend on the example of an element: dropout, and the preparation of images."""

from ringtrain.ops import keys
from ringtrain.ops.base import PREPARE
from ringtrain.ops.cuda.device import THREADS, Device

MOST_ROWS = 65535  # of a grid of blocks


def dropout(device: Device, x_ND, y_ND, examples_N, key_1, layer, rate):
    n = examples_N.size
    width = x_ND.size // max(1, n)
    numbers = n, width, keys.dropout_threshold(rate), 1 / (1 - rate)
    arguments = x_ND, y_ND, examples_N, key_1, layer & keys.MASK, *numbers
    _rows(device, device.kernels.of(x_ND.dtype)("dropout", "dropout"), n, width, *arguments)


def prepare_images(device: Device, images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N):
    n, h, w, c = images_NHWC.shape
    p, q = y_NPQC.shape[1:3]
    arrays = images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N
    kernel = device.kernels("images", PREPARE[images_NHWC.dtype.name])
    _rows(device, kernel, n, p * q * c, *arrays, n, h, w, p, q, c)


def paste_boxes(device: Device, x_NHWC, source_NHWC, boxes_N4):
    n, h, w, c = x_NHWC.shape
    kernel = device.kernels.of(x_NHWC.dtype)("images", "paste_boxes")
    _rows(device, kernel, n, h * w * c, x_NHWC, source_NHWC, boxes_N4, n, h, w, c)


def _rows(device: Device, kernel, rows, width, *arguments):
    """Launch a kernel with a row of blocks for each example, whose threads go over ``width`` elements."""
    if rows and width:
        blocks = -(-width // THREADS), min(rows, MOST_ROWS)
        kernel(blocks, THREADS, device.stream, *arguments)
