"""Files of predictions: HDF5 or CSV by the ending of the name, written aside and renamed when whole.

``class`` is the most probable one, and ``name`` its name; HDF5 has the names in its attribute ``classes``.

HDF5   label int32 [n], class int32 [n], probability float32 [n, K]; or label and features float32 [n, ...]
CSV    example,label,class,name,p0,p1,...                            or example,label,f0,f1,...
"""

import csv
import os
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from ringtrain.data import texts
from ringtrain.errors import DataError, RingtrainError


class PredictionFile(ABC):
    """A file that takes blocks of rows in order, then :meth:`finish`. :meth:`discard` removes an unfinished one."""

    def __init__(self, path: Path, features: bool):
        self._path, self._features = path, features
        self._aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._correct = self._labelled = 0

    @property
    def accuracy(self) -> float | None:
        """The fraction of labelled examples whose class is their label; None for features, or without any label."""
        return self._correct / self._labelled if self._labelled else None

    def write(self, start: int, labels, values) -> None:
        """Append rows. Shapes: labels int32 [n]; values [n, ...], for the examples from ``start`` on"""
        classes = None if self._features else values.argmax(axis=1).astype(np.int32)
        if classes is not None:
            self._labelled += int(np.count_nonzero(labels >= 0))
            self._correct += int(np.count_nonzero(classes == labels))
        with self._clear_errors():
            self._write(start, labels, classes, values)

    def finish(self) -> None:
        """Close the file and give it its name. Raises: UsageError, RingtrainError"""
        with self._clear_errors():
            self._close()
            with open(self._aside, "rb") as file:
                os.fsync(file.fileno())
            os.replace(self._aside, self._path)

    @contextmanager
    def _clear_errors(self):
        try:
            yield
        except (OSError, RuntimeError) as error:  # HDF5 raises RuntimeError at times
            raise RingtrainError(texts.PREDICTIONS_FAILED(path=self._path, error=error)) from None

    def discard(self) -> None:
        """Close the file, and remove it if it is not finished."""
        try:
            self._close()
        except (OSError, RuntimeError):
            pass  # a full disk fails on closing, too: the first error is reported
        finally:
            self._aside.unlink(missing_ok=True)

    @abstractmethod
    def _write(self, start: int, labels, classes, values) -> None: ...

    @abstractmethod
    def _close(self) -> None:
        """Close the file. A second call does nothing."""


class Hdf5Predictions(PredictionFile):
    """Predictions as an HDF5 file."""

    def __init__(self, path: Path, count: int, shape, classes, features: bool, about: dict):
        super().__init__(path, features)
        self._file = h5py.File(self._aside, "w")
        self._file.attrs.update({key: value for key, value in about.items() if value})
        self._file.attrs["classes"] = list(classes)
        self._file.create_dataset("label", (count,), "i4")
        if not features:
            self._file.create_dataset("class", (count,), "i4")
        self._values = self._file.create_dataset("features" if features else "probability", (count, *shape), "f4")

    def _write(self, start, labels, classes, values) -> None:
        rows = slice(start, start + len(labels))
        self._file["label"][rows] = labels
        self._values[rows] = values
        if classes is not None:
            self._file["class"][rows] = classes

    def _close(self) -> None:
        self._file.close()


class CsvPredictions(PredictionFile):
    """Predictions as a CSV file."""

    def __init__(self, path: Path, shape, classes, features: bool):
        super().__init__(path, features)
        self._names = classes
        self._file = open(self._aside, "w", newline="", encoding="utf-8")  # noqa: SIM115 (closed by finish or discard)
        self._rows = csv.writer(self._file)
        width = int(np.prod(shape))
        names = [f"f{i}" for i in range(width)] if features else ["class", "name", *(f"p{i}" for i in range(width))]
        self._rows.writerow(["example", "label", *names])

    def _write(self, start, labels, classes, values) -> None:
        for i, (label, row) in enumerate(zip(labels, values.reshape(len(labels), -1), strict=True)):
            named = [] if classes is None else [int(classes[i]), self._names[classes[i]]]
            self._rows.writerow([start + i, int(label), *named, *(f"{value:.7g}" for value in row)])

    def _close(self) -> None:
        self._file.close()


def open_predictions(
    path: Path, count: int, shape, classes, layer: str | None, about: dict, force: bool
) -> PredictionFile:
    """Open a file for ``count`` rows of ``shape``. Raises: DataError if it cannot be written there."""
    if path.is_dir():
        raise DataError(texts.PREDICTIONS_FOLDER(path=path))
    if path.exists() and not force:
        raise DataError(texts.PREDICTIONS_EXIST(path=path))
    features = layer is not None
    try:
        if path.suffix in (".h5", ".hdf5"):
            return Hdf5Predictions(path, count, shape, classes, features, about)
        if path.suffix == ".csv":
            return CsvPredictions(path, shape, classes, features)
    except OSError as error:
        raise DataError(texts.PREDICTIONS_REFUSED(path=path, reason=error.strerror or error)) from None
    raise DataError(texts.PREDICTIONS_ENDING(path=path))
