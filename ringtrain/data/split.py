"""The examples of one part of a data set, as batches read them: from memory, files or anywhere else."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ringtrain.data.content import IGNORE

Shape = tuple[int, ...]


class Split(ABC):
    """``count`` examples for one purpose, numbered from 0. Threads may read at the same time.

    shape, dtype: of one stored input, without N: (H, W, C), (L,) …; uint8, float32 or float64, as :meth:`read` gives it
    label_shape, label_dtype: of one label, () and int32 for a class number (-1: none); int32 for a class number of each
        pixel; float32 or float64 for values
    checksum: equal for equal examples
    labels: of all examples, in memory, [N, *label_shape]; None where they are read as the inputs are
    problems: why an example could not be read, by its number, to which reading adds; None: it ends the command
    """

    count: int
    shape: Shape
    dtype: np.dtype
    label_shape: Shape
    label_dtype: np.dtype
    checksum: str
    labels: np.ndarray | None
    problems: dict[int, str] | None = None

    @property
    def has_classes(self) -> bool:
        """Whether a label is one class number."""
        return self.label_shape == () and self.label_dtype.kind == "i"

    @property
    def row_bytes(self) -> int:
        """Bytes of one input as it is stored: the order of large sets depends on it, wherever they lie."""
        return math.prod(self.shape) * self.dtype.itemsize

    @abstractmethod
    def valid(self, examples) -> int:
        """Count the labelled elements of these examples: class numbers other than -1, or all values. Shapes: int64
        [n]"""

    @abstractmethod
    def read(self, examples, images, labels) -> None:
        """Read examples into arrays of the split's types. Shapes: int64 [n], images [n, *shape], labels [n,
        *label_shape]"""

    def values(self, start: int, stop: int) -> np.ndarray:
        """Return the labels of some examples that are values. Shapes: → [n, *label_shape]"""
        assert self.labels is not None
        return self.labels[start:stop]

    @abstractmethod
    def image(self, example: int) -> np.ndarray:
        """Return one stored input, at its own size."""

    def advise(self, spans: Iterable[tuple[int, int]], needed: bool) -> None:  # noqa: B027 (nothing to do in memory)
        """Bring spans (start, stop) of examples nearer, which are read soon, or give up those that are not. Examples in
        memory are near."""


def type_read(stored) -> np.dtype:
    """The type in which inputs of a stored type are read: uint8 and float64 as they are, all others as float32."""
    stored = np.dtype(stored)
    return stored if stored in (np.uint8, np.float64) else np.dtype(np.float32)


@dataclass(eq=False)
class ArraySplit(Split):
    """Examples in memory. Shapes: images [N, ...], labels [N, ...] int32, float32 or float64; both read-only."""

    images: np.ndarray
    labels: np.ndarray
    checksum: str

    def __post_init__(self):
        images, labels = self.images, self.labels
        self.count, self.shape, self.dtype = len(images), images.shape[1:], type_read(images.dtype)
        self.label_shape, self.label_dtype = labels.shape[1:], labels.dtype
        self._all_valid = labels.dtype.kind == "f" or not labels.size or bool(labels.min() > IGNORE)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.images.dtype.itemsize

    def valid(self, examples) -> int:
        if self._all_valid:
            return examples.size * math.prod(self.label_shape)
        return int(np.count_nonzero(self.labels[examples] != IGNORE))

    def read(self, examples, images, labels) -> None:
        # mode="clip" writes straight into out; the default would check and copy through a buffer.
        np.take(self.labels, examples, axis=0, out=labels, mode="clip")
        if self.images.dtype == images.dtype:
            np.take(self.images, examples, axis=0, out=images, mode="clip")
        else:
            np.copyto(images, self.images[examples])

    def image(self, example: int) -> np.ndarray:
        return self.images[example].astype(self.dtype, copy=False)
