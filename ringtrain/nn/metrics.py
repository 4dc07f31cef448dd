"""Metrics of an evaluation: what is added up over the examples, on the host, and what is read from the sums.

Counts are whole numbers, so they are exact in any order. Sums are float64, of one part of the evaluation each: they are
added in the order of the parts, at any number of ranks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

TOP = 5  # of top-5 accuracy
MANY = 100  # classes from which on training tells it
MOST_EXP = 700  # whose exp is a float64
MOST_CONFUSED = 2048  # classes of a confusion matrix: 32 MiB


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Elements by class, int64 [K]: labelled so, predicted so, and both.
    ``confusion``: [K, K], of label and prediction; None for too many classes, or for classes that do not exclude one
    another."""

    labelled: np.ndarray
    predicted: np.ndarray
    hits: np.ndarray
    confusion: np.ndarray | None = None

    @property
    def precision(self) -> np.ndarray:
        """hits / predicted; NaN for a class that is never predicted. float64 [K], as the next"""
        return _ratio(self.hits, self.predicted)

    @property
    def recall(self) -> np.ndarray:
        return _ratio(self.hits, self.labelled)

    @property
    def f1(self) -> np.ndarray:
        return _ratio(2 * self.hits, self.predicted + self.labelled)

    @property
    def iou(self) -> np.ndarray:
        """Intersection over union; NaN for a class that neither labels nor predictions have."""
        return _ratio(self.hits, self.predicted + self.labelled - self.hits)


class Metrics(ABC):
    """names: of :meth:`read`'s metrics; sums, counts: how many numbers :meth:`add` adds to"""

    names: tuple[str, ...] = ()
    sums = counts = 0

    @abstractmethod
    def add(self, outputs: np.ndarray, labels: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> None:
        """Add some examples. Shapes: outputs [n, ...], labels [n, ...], sums float64, counts int64"""

    @abstractmethod
    def read(self, valid: int, sums: np.ndarray, counts: np.ndarray, loss: float) -> Mapping[str, float | None]:
        """The metrics by name; None for one that is not defined. ``valid``: labelled elements; ``loss``: their mean"""

    def classes(self, counts: np.ndarray) -> ClassCounts | None:
        """The counts by class; None if they were not counted."""
        return None


class NoMetrics(Metrics):
    """None beside the loss."""

    def add(self, outputs, labels, sums, counts) -> None:
        pass

    def read(self, valid, sums, counts, loss) -> Mapping[str, float | None]:
        return {}


class ClassMetrics(Metrics):
    """Of classes that exclude one another: top-5 accuracy; of dense labels the mean intersection over union, but of a
    sequence's the perplexity, exp(loss).

    whole:    whether fewer than ``MANY`` classes have a top-5 accuracy, too
    by_class: whether elements are counted by class, and confused ones
    sequence: whether dense labels are of places in a row, such as the bytes of a text"""

    def __init__(self, count: int, dense: bool, whole: bool = False, by_class: bool = False, sequence: bool = False):
        self._count, self._sequence, self._overlaps = count, sequence, dense and not sequence
        self._top = not dense and count > TOP and (whole or count >= MANY)
        self._matrix = by_class and count <= MOST_CONFUSED
        self._by_class = by_class or self._overlaps
        defined = {"top5_accuracy": self._top, "perplexity": self._sequence, "mean_iou": self._overlaps}
        self.names = tuple(name for name, of_these in defined.items() if of_these)
        self.counts = int(self._top)
        if self._by_class:
            self.counts += count * count if self._matrix else 3 * count

    def add(self, outputs, labels, sums, counts) -> None:
        labels = labels.reshape(-1)
        known = (labels >= 0) & (labels < self._count)
        rows, labels = outputs.reshape(-1, self._count)[known], labels[known]
        if self._top:
            counts[0] += np.count_nonzero(_rank_of_label(rows, labels) < TOP)
        if not self._by_class:
            return
        predicted, by_class = rows.argmax(axis=1), counts[int(self._top) :]
        if self._matrix:
            by_class += np.bincount(labels * np.int64(self._count) + predicted, minlength=by_class.size)
            return
        for part, classes in zip(
            by_class.reshape(3, -1), (labels, predicted, labels[labels == predicted]), strict=True
        ):
            part += np.bincount(classes, minlength=self._count)

    def read(self, valid, sums, counts, loss) -> Mapping[str, float | None]:
        values: dict[str, float | None] = {}
        if self._top:
            values["top5_accuracy"] = _over(counts[0], valid)
        if self._sequence:
            values["perplexity"] = math.exp(loss) if loss < MOST_EXP else None
        if self._overlaps:
            by_class = self.classes(counts)
            assert by_class is not None, "dense classes are counted"
            iou = by_class.iou
            values["mean_iou"] = float(iou[~np.isnan(iou)].mean()) if not np.isnan(iou).all() else None
        return values

    def classes(self, counts) -> ClassCounts | None:
        if not self._by_class:
            return None
        by_class = counts[int(self._top) :]
        if not self._matrix:
            return ClassCounts(*by_class.reshape(3, -1))
        matrix = by_class.reshape(self._count, self._count)
        return ClassCounts(matrix.sum(axis=1), matrix.sum(axis=0), np.diagonal(matrix), matrix)


class BinaryMetrics(Metrics):
    """Of classes that do not exclude one another, each there or not: F1 over all of them, by ``columns`` classes."""

    def __init__(self, columns: int):
        self._columns, self.names, self.counts = columns, ("f1",), 3 * columns

    def add(self, outputs, labels, sums, counts) -> None:
        present, labels = outputs.reshape(-1, self._columns) > 0, labels.reshape(-1, self._columns)
        counts_here = labels != -1 if labels.dtype.kind == "i" else np.ones(labels.shape, bool)
        right = labels > 0.5
        for part, classes in zip(counts.reshape(3, -1), (right, present, right & present), strict=True):
            part += (classes & counts_here).sum(axis=0)

    def read(self, valid, sums, counts, loss) -> Mapping[str, float | None]:
        labelled, predicted, hits = counts.reshape(3, -1).sum(axis=1)
        return {"f1": _over(2 * hits, labelled + predicted)}

    def classes(self, counts) -> ClassCounts | None:
        return ClassCounts(*counts.reshape(3, -1))


class ValueMetrics(Metrics):
    """Of values: root mean square error, mean absolute error and R², the share of the labels' variance that is
    explained, of all elements together."""

    names = ("rmse", "mae", "r2")
    sums = 4  # of squared and absolute differences, of labels and of their squares

    def add(self, outputs, labels, sums, counts) -> None:
        y = labels.reshape(-1)
        counts_here = y != -1 if y.dtype.kind == "i" else slice(None)
        x, y = (array[counts_here].astype(np.float64) for array in (outputs.reshape(-1), y))
        d = x - y
        sums += (np.square(d).sum(), np.abs(d).sum(), y.sum(), np.square(y).sum())

    def read(self, valid, sums, counts, loss) -> Mapping[str, float | None]:
        squares, sizes, labels, label_squares = map(float, sums)
        variation = label_squares - labels * labels / valid
        r2 = 1 - squares / variation if variation > 0 else None
        return {"rmse": (squares / valid) ** 0.5, "mae": sizes / valid, "r2": r2}


def _rank_of_label(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The place of each label among the outputs, from 0; of equal ones the first comes first."""
    scores = np.take_along_axis(rows, labels[:, None], axis=1)
    before = np.arange(rows.shape[1]) < labels[:, None]
    return ((rows > scores) | ((rows == scores) & before)).sum(axis=1)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def _over(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
