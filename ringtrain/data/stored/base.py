"""An array whose rows lie anywhere: in memory, in a file, or in several. Examples are rows.

A reader gives consecutive rows, or any rows; :meth:`StoredArray.advise` names those that are wanted next, and those
that are not read again soon.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ringtrain.data import texts
from ringtrain.errors import DataError

BLOCK_BYTES = 16 << 20
NUMBERS = "iufb"  # the kinds of NumPy's types that are read: whole numbers, floats, and booleans as uint8


class StoredArray(ABC):
    """Rows of numbers. ``where`` names it in messages; ``shape``: (N, ...); ``dtype``: as stored, in the machine's
    order of bytes; ``by_rows``: whether any row is read without those before it. Threads may read at the same time."""

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype
    by_rows: bool = True

    @property
    def count(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.count * self.row_bytes

    def example(self, row: int) -> int:
        """Return the number that a row has in the user's array."""
        return row

    @abstractmethod
    def read(self, start: int, stop: int, out) -> None:
        """Read rows ``start:stop`` into ``out`` of the stored type. Raises: DataError naming the file."""

    def take(self, examples, out) -> None:
        """Read rows in any order, each run of consecutive ones at once. Shapes: int64 [n], out [n, ...] of any type"""
        order = np.argsort(examples, kind="stable")
        ranked = examples[order]
        edges = np.flatnonzero(np.diff(ranked) != 1) + 1
        for positions in np.split(order, edges):
            if positions.size:
                first = int(examples[positions[0]])
                rows = np.empty((positions.size, *self.shape[1:]), self.dtype)
                self.read(first, first + positions.size, rows)
                out[positions] = rows

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start:stop`` in the stored type."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self.read(start, stop, out)
        return out

    def whole(self) -> np.ndarray:
        """Return all rows, in memory or mapped."""
        return self.rows(0, self.count)

    def blocks(self):
        """Yield (slice, rows) of about 16 MiB each, which cover the array in order."""
        for rows in row_blocks(self.count, self.row_bytes):
            yield rows, self.rows(rows.start, rows.stop)

    def verify(self) -> None:  # noqa: B027 (most containers hold no checksum, or one of each block that is read)
        """Compare the values with a checksum of all of them, before their first use. Raises: DataError"""

    def advise(self, start: int, stop: int, needed: bool) -> None:  # noqa: B027 (nothing to do in memory)
        """Bring rows nearer that are read soon, or give up memory of rows that are not. It may do nothing."""

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self.rows(0, self.count), dtype)


def row_blocks(count: int, row_bytes: int):
    """Yield slices of about 16 MiB that cover ``count`` rows."""
    rows = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))


def bytes_of(rows: np.ndarray) -> memoryview:
    """Return the bytes of a contiguous array, to be written to."""
    return memoryview(rows.reshape(-1).view(np.uint8).data)


def check_type(where: str, dtype: np.dtype, shape: Sequence[int]) -> np.dtype:
    """Return the type in the machine's order of bytes, uint8 for booleans. Raises: DataError unless it is of numbers,
    with a first axis of examples."""
    if dtype.kind not in NUMBERS or dtype.itemsize > 8 or dtype.subdtype is not None:
        raise DataError(
            f"{where} is of type {dtype}: ringtrain reads booleans, whole numbers and floats of up to 64 bits (uint8, "
            "int16, float32, …); convert it with astype, or text to class numbers: names, y = numpy.unique(y, "
            "return_inverse=True)"
        )
    if not shape or 0 in shape[1:]:
        raise DataError(
            f"{where} has the shape {tuple(shape)}: the first axis counts the examples, and none of the others is 0"
        )
    if shape[0] == 0:
        raise DataError(texts.NO_EXAMPLES.format(where=where))
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder("=")


class MemoryArray(StoredArray):
    """An array in memory."""

    where = "memory"

    def __init__(self, array: np.ndarray):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def read(self, start: int, stop: int, out) -> None:
        np.copyto(out, self.array[start:stop])

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self.array[start:stop]

    def take(self, examples, out) -> None:
        out[...] = self.array[examples]


class JoinedArray(StoredArray):
    """Arrays of several files one after another. Raises: DataError unless their rows have one shape and type."""

    def __init__(self, parts: Sequence[StoredArray]):
        self._parts = tuple(parts)
        first = self._parts[0]
        for other in self._parts[1:]:
            if (other.shape[1:], other.dtype) != (first.shape[1:], first.dtype):
                raise DataError(
                    f"{other.where} has examples of {other.dtype} {other.shape[1:]}, but {first.where} of "
                    f"{first.dtype} {first.shape[1:]}: files of one set have the same type and shape"
                )
        self._starts = np.cumsum([0, *(part.count for part in self._parts)])
        self.where = f"{first.where} and {len(self._parts) - 1} others" if parts[1:] else first.where
        self.shape, self.dtype = (int(self._starts[-1]), *first.shape[1:]), first.dtype
        self.by_rows = all(part.by_rows for part in self._parts)

    def verify(self) -> None:
        for part in self._parts:
            part.verify()

    def _pieces(self, start: int, stop: int):
        """Yield (part, start, stop within it, place of its first row) of consecutive rows."""
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first = int(self._starts[number])
            end = min(stop, int(self._starts[number + 1]))
            yield self._parts[number], start - first, end - first, start
            start, number = end, number + 1

    def read(self, start: int, stop: int, out) -> None:
        for part, first, last, row in self._pieces(start, stop):
            part.read(first, last, out[row - start : row - start + last - first])

    def take(self, examples, out) -> None:
        numbers = np.searchsorted(self._starts, examples, side="right") - 1
        for number in np.unique(numbers):
            positions = np.flatnonzero(numbers == number)
            rows = np.empty((positions.size, *self.shape[1:]), out.dtype)
            self._parts[number].take(examples[positions] - self._starts[number], rows)
            out[positions] = rows

    def advise(self, start: int, stop: int, needed: bool) -> None:
        for part, first, last, _ in self._pieces(start, stop):
            part.advise(first, last, needed)


class ChosenRows(StoredArray):
    """Some rows of an array, in the order of ``examples``, int64 [n]."""

    def __init__(self, whole: StoredArray, examples):
        self._whole, self._examples = whole, examples
        self.where, self.dtype, self.by_rows = whole.where, whole.dtype, whole.by_rows
        self.shape = (examples.size, *whole.shape[1:])

    def example(self, row: int) -> int:
        return self._whole.example(int(self._examples[row]))

    def read(self, start: int, stop: int, out) -> None:
        self._whole.take(self._examples[start:stop], out)


class ReshapedRows(StoredArray):
    """The same values with rows of another shape: an axis of length 1 more, or one less."""

    def __init__(self, array: StoredArray, shape: Sequence[int]):
        self._array = array
        self.where, self.dtype, self.by_rows = array.where, array.dtype, array.by_rows
        self.shape = (array.count, *shape)

    def verify(self) -> None:
        self._array.verify()

    def _as_stored(self, out):
        return out.reshape(len(out), *self._array.shape[1:])

    def read(self, start: int, stop: int, out) -> None:
        self._array.read(start, stop, self._as_stored(out))

    def take(self, examples, out) -> None:
        self._array.take(examples, self._as_stored(out))

    def advise(self, start: int, stop: int, needed: bool) -> None:
        self._array.advise(start, stop, needed)


class ChannelsLast(ReshapedRows):
    """The rows of an array whose channels come first."""

    def __init__(self, array: StoredArray):
        channels, *extents = array.shape[1:]
        super().__init__(array, (*extents, channels))

    def _as_stored(self, out):
        return np.moveaxis(out, -1, 1)


class WithoutLabel(ReshapedRows):
    """Class numbers of which one, ``ignored``, means that there is no label: it becomes ``none``."""

    def __init__(self, array: StoredArray, ignored: int, none: int):
        super().__init__(array, array.shape[1:])
        self.dtype, self._ignored, self._none = np.dtype(np.int64), ignored, none

    def read(self, start: int, stop: int, out) -> None:
        super().read(start, stop, out)
        out[out == self._ignored] = self._none

    def take(self, examples, out) -> None:
        super().take(examples, out)
        out[out == self._ignored] = self._none
