"""A split whose inputs stay in their files: batches read the rows that they need."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import IGNORE, Part
from ringtrain.data.split import Shape, Split, type_read
from ringtrain.data.stored.base import ReshapedRows
from ringtrain.errors import DataError


@dataclass(eq=False)
class StreamedSplit(Split):
    """``part``: of files, whose inputs get ``shape``. ``labels`` in memory; None: in files, too; ``numbered``: the
    labelled elements of each example, int32 [N], where labels in files are class numbers below ``classes``."""

    part: Part
    shape: Shape
    checksum: str
    classes: int
    labels: np.ndarray | None
    numbered: np.ndarray | None

    def __post_init__(self):
        inputs = self.part.inputs
        self.inputs = inputs if inputs.shape[1:] == self.shape else ReshapedRows(inputs, self.shape)
        self.count, self.dtype = inputs.count, type_read(inputs.dtype)
        self.label_shape, self.label_dtype = self.part.label_shape, self.part.label_dtype
        self.targets = self.part.labels if self.labels is None else None

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

    def values(self, start: int, stop: int) -> np.ndarray:
        if self.targets is None:
            return super().values(start, stop)
        out = np.empty((stop - start, *self.label_shape), self.label_dtype)
        self.targets.take(np.arange(start, stop), out)
        return out

    def image(self, example: int) -> np.ndarray:
        out = np.empty((1, *self.shape), self.dtype)
        self.inputs.take(np.array([example]), out)
        return out[0]

    def advise(self, spans: Iterable[tuple[int, int]], needed: bool) -> None:
        for array, (start, stop) in product(filter(None, (self.inputs, self.targets)), spans):
            array.advise(start, stop, needed)


def check_labels(where: str, labels: np.ndarray, classes: int) -> None:
    """Raise DataError if class numbers are none of ``classes``, or values are not finite: the file was changed."""
    if not labels.size:
        return
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise DataError(texts.NOT_FINITE.format(where=where, which=""))
    elif labels.min() < IGNORE or labels.max() >= classes:
        raise DataError(
            f"{where} has labels in {labels.min()} … {labels.max()}, but there are {classes} classes: the file was "
            "changed after it was opened"
        )
