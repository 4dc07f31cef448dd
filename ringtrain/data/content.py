"""The content of a data set: a source's reader returns it, and ``write_dataset`` writes it to a file, by blocks."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.data import texts
from ringtrain.data.stored.base import MemoryArray, StoredArray
from ringtrain.errors import DataError

CLASS_NUMBERS = np.dtype(np.int32)
IGNORE = -1  # the label of an example that counts nowhere: neither loss nor accuracy
MOST_CLASSES = 1 << 16
BESIDE = "/"  # in a data set's checksum, before the sum of class names and statistics

Progress = Callable[[str, int, int], None]  # (what is being done, done so far, in all)


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True)
class Part:
    """The arrays of one split, as they are stored: in memory or in files. ``labels``: None if there are none;
    ``checksum``: as a file of `data make` notes it."""

    inputs: StoredArray
    labels: StoredArray | None
    checksum: str | None = None

    @property
    def count(self) -> int:
        return self.inputs.count

    @property
    def label_shape(self) -> tuple[int, ...]:
        return self.labels.shape[1:] if self.labels is not None else ()

    @property
    def label_dtype(self) -> np.dtype:
        """int32 for class numbers; float64 or float32 for values."""
        if self.labels is None or self.labels.dtype.kind in "iu":
            return CLASS_NUMBERS
        return np.dtype(np.float64 if self.labels.dtype == np.float64 else np.float32)

    @property
    def of_values(self) -> bool:
        return self.label_dtype.kind == "f"

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @property
    def arrays(self) -> list[StoredArray]:
        return [array for array in (self.inputs, self.labels) if array is not None]


def memory_part(inputs: np.ndarray, labels: np.ndarray) -> Part:
    return Part(MemoryArray(inputs), MemoryArray(labels))


@dataclass(frozen=True, slots=True)
class Content:
    """A data set. ``source`` is text for people; ``notes`` name unrequested steps of the reader;
    ``in_order``: whether examples follow one another, as those of a text do: its end is the test part"""

    name: str
    train: Part
    test: Part | None
    classes: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()
    in_order: bool = False

    def parts(self):
        """Yield (name, part) of each part that exists."""
        yield "train", self.train
        if self.test is not None:
            yield "test", self.test


def make_part(images, labels, where: str) -> Part:
    """Make a part of class numbers, with a channel axis. Shapes: images uint8 [N, H, W] or [N, H, W, C], labels any
    integers [N]. Raises: DataError naming ``where``."""
    images = images[..., None] if images.ndim == 3 else images
    if 0 in images.shape[1:]:
        raise DataError(f"{where}: images have the shape {images.shape}; it must be [N, H, W] or [N, H, W, C]")
    if labels.shape != images.shape[:1]:
        raise DataError(
            f"{where}: labels have the shape {labels.shape} for {len(images)} images; it must be ({len(images)},)"
        )
    if len(images) == 0:
        raise DataError(texts.NO_EXAMPLES.format(where=where))
    low, high = int(labels.min()), int(labels.max())
    if low < IGNORE or high >= MOST_CLASSES:
        raise DataError(texts.LABELS_RANGE.format(where=where, low=low, high=high, most=MOST_CLASSES - 1))
    return memory_part(np.ascontiguousarray(images), np.ascontiguousarray(labels, np.int32))


class Checksum:
    """sha256 over a line "uint8 N H W C" (type and shape), the inputs and the labels, little-endian, in file order.
    Labels other than class numbers, int32 [N], have a line of their type and shape too. It is of the stored shape, so
    it does not depend on the network."""

    def __init__(self, part: Part):
        self._hash = hashlib.sha256(_line(part.inputs.shape, part.inputs.dtype))
        lined = part.label_shape or part.of_values
        self._label_line = _line((part.count, *part.label_shape), part.label_dtype) if lined else b""

    def add(self, images) -> None:
        if images.size:
            little = np.ascontiguousarray(images, images.dtype.newbyteorder("<"))
            self._hash.update(little.reshape(-1).view(np.uint8).data)

    def add_labels(self, labels) -> None:
        """Add a block of labels. The first block follows the last inputs."""
        self._hash.update(self._label_line)
        self._label_line = b""
        self.add(labels)

    def finish(self) -> str:
        return self._hash.hexdigest()


def _line(shape, dtype) -> bytes:
    return f"{np.dtype(dtype).name} {' '.join(map(str, shape))}\n".encode()


def difference(stored: str, current: str) -> str:
    """Describe how two data sets differ, by their checksums; empty if they are equal. ``stored`` may come from an
    earlier ringtrain, whose checksums cover the examples only."""
    (stored, beside, facts), (current, _, other) = stored.partition(BESIDE), current.partition(BESIDE)
    if stored != current:
        return f"its examples have the checksum {stored[:12]}…, these have {current[:12]}…"
    if beside and facts != other:
        return f"its class names, mean, std and mean_image have the checksum {facts[:12]}…, these have {other[:12]}…"
    return ""
