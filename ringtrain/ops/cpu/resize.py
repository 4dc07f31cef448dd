"""Images of bytes, resized by the compiled kernel, in any number of threads of the program at a time."""

import threading
from functools import cache

import numpy as np

from ringtrain.ops.cpu.library import open_kernels

Box = tuple[int, int, int, int]  # top, left, height, width
Part = tuple[float, float, float, float]
MOST_BYTES = 64 << 20  # of the rows between both passes


class _OfThread(threading.local):
    """A workspace serves one thread."""

    def __init__(self):
        self.kernels = open_kernels(np.dtype(np.float32), 1)


_of_thread = cache(_OfThread)  # made at the first image: without images no kernels are needed


def fits(box: Box, width: int, channels: int) -> bool:
    """Return whether :func:`resize_image` takes a box that becomes ``width`` pixels wide: its memory has a bound."""
    _, _, rows, columns = box
    return rows * (width * channels + 32) <= MOST_BYTES and columns * 32 <= MOST_BYTES


def resize_image(image_HWS: np.ndarray, out_PQC: np.ndarray, box: Box, part: Part | None = None) -> None:
    """Resize a box of an image to ``out``: a new pixel is the mean of all pixels in the box that it covers (bilinear,
    with antialias). ``part``: top, left, height and width, of any real size, of the pixels in the box that become
    ``out``; None: all of them. Shapes: uint8 [H, W, S] with S = C, or 4 for C = 3; C is 1 or 3"""
    y, x, high, wide = part or (0.0, 0.0, float(box[2]), float(box[3]))
    height, width, channels = out_PQC.shape
    _of_thread().kernels.resize_image(
        image_HWS, out_PQC, *image_HWS.shape, channels, *box, y, x, high, wide, height, width
    )  # fmt: skip
