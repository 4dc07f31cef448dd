"""Mean and standard deviation of inputs, a block at a time: of uint8 exactly, by sums of integers, which no order of
additions changes; of other types by sums in float64, in the order of the examples."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ringtrain.data import texts
from ringtrain.data.stored.base import StoredArray
from ringtrain.errors import DataError


@dataclass(frozen=True, slots=True)
class PixelStatistics:
    """Statistics of the training inputs, on their own scale; the last axis is C.

    Shapes: mean, std float64 [C], over examples and pixels; mean_image float32 [..., C], over examples.
    """

    mean: np.ndarray
    std: np.ndarray
    mean_image: np.ndarray


def statistics_for(shape, statistics):
    """Return (mean, std, mean_image) for inputs of this shape, without N, from statistics of the stored ones: of one
    channel where the stored inputs have no axis of channels, so that their last axis was taken for it."""
    if statistics.mean_image.shape == shape:
        return statistics.mean, statistics.std, statistics.mean_image
    mean = statistics.mean.mean(keepdims=True)
    variance = (np.square(statistics.std) + np.square(statistics.mean - mean)).mean(keepdims=True)
    return mean, np.sqrt(variance), statistics.mean_image.reshape(shape)


class IntegerSums:
    """Sums of blocks of uint8 inputs: ``pixels`` and ``squares`` of :func:`statistics_of_sums`."""

    def __init__(self, shape):
        self._count = 0
        self.pixels = np.zeros(shape, np.uint64)
        self.squares = np.zeros(shape[-1], np.uint64)

    def add(self, images) -> None:
        """Add a block. Shapes: uint8 [n, ..., C]"""
        # The sums of a piece fit uint32: fewer than 2^16 rows, of squares below 2^16 each.
        for start in range(0, len(images), 1 << 15):
            piece = images[start : start + (1 << 15)]
            self.pixels += piece.sum(axis=0, dtype=np.uint32)
            squares = np.square(piece, dtype=np.uint16).sum(axis=0, dtype=np.uint32)
            self.squares += squares.sum(axis=_all_but_last(squares), dtype=np.uint64)
        self._count += len(images)

    def finish(self) -> PixelStatistics:
        """Return the statistics of all blocks, of one example at least."""
        return statistics_of_sums(self.pixels, self.squares, self._count)


def statistics_of_sums(pixels, squares, count: int) -> PixelStatistics:
    """Return the statistics of ``count`` inputs from sums over them. Shapes: uint64 [..., C], of each pixel; uint64
    [C], of squares"""
    n = count * pixels.size // pixels.shape[-1]
    sums = [int(s) for s in pixels.sum(axis=_all_but_last(pixels))]
    # n²·variance, in Python's integers: no cancellation.
    variances = [(n * int(q) - s * s) / (n * n) for q, s in zip(squares, sums, strict=True)]
    return PixelStatistics(
        mean=np.array([s / n for s in sums]),
        std=np.sqrt(np.array(variances)),
        mean_image=(pixels / count).astype(np.float32),
    )


class NotFinite:
    """Counts the values of an array that are not finite (NaN or infinite), a block at a time."""

    def __init__(self, array: StoredArray):
        self._array, self._count, self._first = array, 0, ""
        self._columns = np.zeros(array.shape[1:], bool)

    def add(self, rows, start: int) -> None:
        """Add the rows from ``start`` on."""
        wrong = ~np.isfinite(rows)
        if not wrong.any():
            return
        if not self._first:
            row, *place = map(int, np.unravel_index(wrong.argmax(), wrong.shape))
            column = f", column {place[0]}" if len(place) == 1 else f", at {place}"
            self._first = f"example {self._array.example(start + row)}{column if self._columns.size > 1 else ''}"
        self._count += int(np.count_nonzero(wrong))
        self._columns |= wrong.any(axis=0)

    def problems(self) -> Iterator[str]:
        """Yield a problem if there is such a value."""
        if self._count:
            columns = f", in {np.count_nonzero(self._columns)} of {self._columns.size} columns"
            which = f", {self._count:,} in all{columns if self._columns.ndim == 1 else ''}, the first at {self._first}"
            yield texts.NOT_FINITE.format(where=self._array.where, which=which)


class FloatSums:
    """Sums of blocks of the rows of an array of any type, in float64."""

    def __init__(self, array: StoredArray):
        shape = array.shape[1:]
        self._wrong, self._count = NotFinite(array), 0
        self._pixels = np.zeros(shape)
        self._squares = np.zeros(shape[-1])
        self._shift: np.ndarray | None = None  # near the mean, so that squares do not cancel

    @np.errstate(over="ignore", invalid="ignore")  # finish() refuses such values
    def add(self, inputs) -> None:
        """Add a block. Shapes: [n, ..., C]"""
        sums = inputs.sum(axis=0, dtype=np.float64)
        if not np.isfinite(sums).all():
            self._wrong.add(inputs, self._count)
        if self._shift is None:
            self._shift = sums.mean(axis=_all_but_last(sums)) / len(inputs)
        self._pixels += sums
        off = (inputs - self._shift).reshape(-1, inputs.shape[-1])
        self._squares += np.square(off, out=off).sum(axis=0)
        self._count += len(inputs)

    def finish(self) -> PixelStatistics:
        """Return the statistics of all blocks, of one example at least. Raises: DataError if a value is not finite"""
        for problem in self._wrong.problems():
            raise DataError(problem)
        n = self._count * self._pixels.size // self._pixels.shape[-1]
        mean = self._pixels.sum(axis=_all_but_last(self._pixels)) / n
        variance = np.maximum(0, self._squares / n - np.square(mean - self._shift))
        return PixelStatistics(mean, np.sqrt(variance), (self._pixels / self._count).astype(np.float32))


def running_statistics(inputs: StoredArray) -> IntegerSums | FloatSums:
    return IntegerSums(inputs.shape[1:]) if inputs.dtype == np.uint8 else FloatSums(inputs)


def _all_but_last(array) -> tuple[int, ...]:
    return tuple(range(array.ndim - 1))


def pixel_statistics(inputs: StoredArray) -> PixelStatistics:
    """Compute the statistics of all inputs. Shapes: [N, ..., C], N from 1"""
    running = running_statistics(inputs)
    for _, block in inputs.blocks():
        running.add(block)
    return running.finish()
