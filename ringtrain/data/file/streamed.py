"""A split whose inputs stay in their files: batches read the rows that they need."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import IGNORE
from ringtrain.data.split import Shape, Split, type_read
from ringtrain.data.stored.base import StoredArray
from ringtrain.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class StreamedSplit(Split):
    """``inputs`` in files. ``labels`` in memory, or ``targets`` in files, of ``label_dtype``; ``numbered``: the
    labelled elements of each example, int32 [N], where targets are class numbers below ``classes``."""

    inputs: StoredArray
    checksum: str
    label_shape: Shape
    label_dtype: np.dtype
    classes: int
    labels: np.ndarray | None = None
    targets: StoredArray | None = None
    numbered: np.ndarray | None = None

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.inputs.count

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return self.inputs.shape[1:]

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        return type_read(self.inputs.dtype)

    @property
    def row_bytes(self) -> int:
        return self.inputs.row_bytes

    def valid(self, examples) -> int:
        if self.numbered is not None:
            return int(self.numbered[examples].sum())
        if self.labels is not None and self.label_dtype.kind == "i":
            return int(np.count_nonzero(self.labels[examples] != IGNORE))
        return examples.size * math.prod(self.label_shape)

    def read(self, examples, images, labels) -> None:
        self.inputs.take(examples, images)
        if self.labels is not None:
            np.take(self.labels, examples, axis=0, out=labels, mode="clip")
        elif self.targets is not None:
            self.targets.take(examples, labels)
            check_labels(self.targets.where, labels, self.classes)

    def image(self, example: int) -> np.ndarray:
        out = np.empty((1, *self.shape), self.dtype)
        self.inputs.take(np.array([example]), out)
        return out[0]

    def ahead(self, spans: Iterable[tuple[int, int]]) -> None:
        for start, stop in spans:
            for array in filter(None, (self.inputs, self.targets)):
                array.ahead(start, stop)

    def behind(self, spans: Iterable[tuple[int, int]]) -> None:
        for start, stop in spans:
            for array in filter(None, (self.inputs, self.targets)):
                array.behind(start, stop)


def check_labels(where: str, labels: np.ndarray, classes: int) -> None:
    """Raise DataError if class numbers are none of ``classes``, or values are not finite: the file was changed."""
    if not labels.size:
        return
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise DataError(texts.NOT_FINITE(where=where))
    elif labels.min() < IGNORE or labels.max() >= classes:
        raise DataError(
            f"{where} has labels in {labels.min()} … {labels.max()}, but there are {classes} classes: the file was "
            "changed after it was opened"
        )
