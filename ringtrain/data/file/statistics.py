"""Mean and standard deviation of images, exactly: sums of integers, which no order of additions changes."""

from dataclasses import dataclass

import numpy as np

from ringtrain.data.content import Progress, no_progress, row_blocks


@dataclass(frozen=True, slots=True)
class PixelStatistics:
    """Statistics of the training images, on the scale 0 … 255.

    Shapes: mean, std float64 [C], over examples and pixels; mean_image float32 [H, W, C], over examples.
    """

    mean: np.ndarray
    std: np.ndarray
    mean_image: np.ndarray


def pixel_statistics(images, progress: Progress = no_progress) -> PixelStatistics:
    """Compute the statistics of images in two passes of integer sums, a block at a time. Shapes: uint8 [N, H, W, C], N
    from 1"""
    count, *shape = images.shape
    pixel_sums = np.zeros(shape, np.uint64)
    square_sums = np.zeros(shape[-1], np.uint64)
    # A block's sums fit uint32: fewer than 2^16 rows, of squares below 2^16 each.
    for rows in row_blocks(count, images[0].nbytes * 8):
        for part in _at_most(rows, 1 << 15):
            block = images[part]
            pixel_sums += block.sum(axis=0, dtype=np.uint32)
            square_sums += (
                np.square(block, dtype=np.uint16).sum(axis=0, dtype=np.uint32).sum(axis=(0, 1), dtype=np.uint64)
            )
        progress("statistics", rows.stop, count)
    return statistics_of_sums(pixel_sums, square_sums, count)


def _at_most(rows: slice, most: int):
    for start in range(rows.start, rows.stop, most):
        yield slice(start, min(start + most, rows.stop))


def statistics_of_sums(pixel_sums, square_sums, count: int) -> PixelStatistics:
    """Compute the statistics of ``count`` images from sums over them. Shapes: uint64 [H, W, C], of each pixel; uint64
    [C], of squares"""
    n = count * pixel_sums.shape[0] * pixel_sums.shape[1]
    sums = [int(s) for s in pixel_sums.sum(axis=(0, 1))]
    # n²·variance, in Python's integers: no cancellation.
    variances = [(n * int(q) - s * s) / (n * n) for q, s in zip(square_sums, sums, strict=True)]
    return PixelStatistics(
        mean=np.array([s / n for s in sums]),
        std=np.sqrt(np.array(variances)),
        mean_image=(pixel_sums / count).astype(np.float32),
    )
