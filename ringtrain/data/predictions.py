"""Predictions as JSON lines, CSV or HDF5, by the ending of a file's name; a file gets its name when it is whole.

``class`` is the most probable one, and ``name`` its name; ``classes`` has all names, in HDF5 as an attribute.

JSON   a line an example: {"input": "cat.jpg", "top": [{"class": 3, "name": "cat", "probability": 0.93}, ...]}; with
       "example", its number, of arrays; with "label" if it has one; "values" or "features" in place of "top"; "error"
       in place of either, of a file that could not be read
CSV    input,example,label,class,name,p0,p1,...,error     v0,v1,... of values, f0,f1,... of features
HDF5   input, example, label int32 [n], class int32 [n], probability float32 [n, K]     values or features [n, ...]

The columns input, example (HDF5) and error are there if inputs were given. A row of a file that could not be read has
the class -1 and NaN. Beside values, where they are known, the true ones are ``target``, y0,y1,... in CSV, and no label.
"""

import csv
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from ringtrain.data.content import IGNORE
from ringtrain.errors import DataError, RingtrainError
from ringtrain.storage import hdf5

STANDARD_OUTPUT = Path("-")
PROBABILITY, VALUES, FEATURES, TARGET = "probability", "values", "features", "target"
ENDINGS = ".jsonl, .csv or .h5"
TOP = 5
MOST_IN_TEXT = 1 << 16  # numbers of one example; an HDF5 file takes any


@dataclass(frozen=True, slots=True)
class PredictionForm:
    """The predictions of a file."""

    kind: str  # PROBABILITY of classes, VALUES or FEATURES; ``shape``: of one example's numbers
    count: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]  # their names. Of a class for each pixel the shape is [H, W, K], which HDF5 alone takes
    named: bool  # whether inputs were given, so that a row has the name of its own
    targets: bool = False  # whether there are true values, of the predictions' shape


@dataclass(frozen=True, slots=True)
class PredictionRows:
    """Some examples, the first of them number ``start`` of all."""

    start: int
    names: Sequence[tuple[str, int | None]]  # the input of each, and its number in it; None for the only one
    labels: np.ndarray  # int32 [n], -1 for none; ``values``: [n, ...]
    values: np.ndarray
    problems: Mapping[int, str] = field(default_factory=dict)  # why an example could not be read, by its place here
    # reads the true values; NaN where they are not known. None of a form without
    targets: Callable[[], np.ndarray] | None = None


class PredictionFile(ABC):
    """A file that takes rows in order, then :meth:`finish`. :meth:`discard` removes an unfinished one.

    ``path``: None for standard output
    """

    _file: Any

    def __init__(self, path: Path | None, form: PredictionForm):
        self._path, self._form = path, form
        self._aside = path.with_name(f".{path.name}.{os.getpid()}.partial") if path else Path(os.devnull)
        self._correct = self._labelled = 0

    @property
    def accuracy(self) -> float | None:
        """The fraction of labelled examples whose class is their label; None without any label or class."""
        return self._correct / self._labelled if self._labelled else None

    def write(self, rows: PredictionRows) -> None:
        """Append rows. Raises: RingtrainError"""
        classes = rows.values.argmax(axis=-1).astype(np.int32) if self._form.kind == PROBABILITY else None
        if classes is not None and classes.ndim == 1:
            self._labelled += int(np.count_nonzero(rows.labels >= 0))
            self._correct += int(np.count_nonzero((classes == rows.labels) & (rows.labels >= 0)))
        with self._clear_errors():
            self._write(rows, classes)

    def finish(self) -> None:
        """Close the file and give it its name. Raises: UsageError, RingtrainError"""
        with self._clear_errors():
            self._close()
            if self._path is not None:
                with open(self._aside, "rb") as file:
                    os.fsync(file.fileno())
                os.replace(self._aside, self._path)

    @contextmanager
    def _clear_errors(self):
        try:
            yield
        except RingtrainError:  # of standard output
            raise
        except (OSError, RuntimeError) as error:  # HDF5 raises RuntimeError at times
            raise RingtrainError(f"{self._path} could not be written: {error}; make room there") from None

    def discard(self) -> None:
        """Close the file, and remove it if it is not finished."""
        try:
            with suppress(OSError, RuntimeError, RingtrainError):  # a full disk fails, too: the first error is reported
                self._close()
        finally:
            if self._path is not None:
                self._aside.unlink(missing_ok=True)

    @abstractmethod
    def _write(self, rows: PredictionRows, classes) -> None: ...

    def _close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()


class Hdf5Predictions(PredictionFile):
    """Predictions as arrays by name in an HDF5 file, whose rows are filled block by block."""

    def __init__(self, path: Path, form: PredictionForm, about: dict):
        super().__init__(path, form)
        self._file = h5py.File(self._aside, "w", libver=hdf5.LIBVER)
        self._file.attrs.update({key: hdf5.as_text(value) for key, value in about.items() if value})
        self._file.attrs["classes"] = list(map(hdf5.as_text, form.classes))
        for name, (shape, dtype) in self._columns().items():
            self._file.create_dataset(name, (form.count, *shape), dtype)

    def _columns(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Name → (shape of an example's, dtype)."""
        form = self._form
        columns: dict[str, tuple[tuple[int, ...], Any]] = {form.kind: (form.shape, "f4")}
        columns |= {TARGET: columns[form.kind]} if form.targets else {"label": ((), "i4")}
        columns |= {"class": (form.shape[:-1], "i4")} if form.kind == PROBABILITY else {}
        return columns | ({"input": ((), h5py.string_dtype()), "example": ((), "i8")} if form.named else {})

    def _write(self, rows, classes) -> None:
        bad = sorted(rows.problems)
        values = np.array(rows.values, np.float32)
        values[bad] = np.nan
        columns = {self._form.kind: values, "label": rows.labels, TARGET: rows.targets and rows.targets()}
        if classes is not None:
            classes[bad] = IGNORE
            columns["class"] = classes
        if self._form.named:
            columns["input"] = np.array([os.fsencode(name) for name, _ in rows.names], object)
            columns["example"] = np.array([number or 0 for _, number in rows.names])
        for name, array in self._file.items():
            array[rows.start : rows.start + len(values)] = columns[name]


class CsvPredictions(PredictionFile):
    """Predictions as a CSV file."""

    def __init__(self, path: Path, form: PredictionForm):
        super().__init__(path, form)
        self._file = open(  # noqa: SIM115 (closed by finish or discard)
            self._aside, "w", newline="", encoding="utf-8", errors="backslashreplace"
        )
        self._rows = csv.writer(self._file)
        letter = {PROBABILITY: "p", VALUES: "v", FEATURES: "f"}[form.kind]
        self._numbers = [f"{letter}{i}" for i in range(math.prod(form.shape))]
        named = ["class", "name"] if form.kind == PROBABILITY else []
        known = [f"y{i}" for i in range(math.prod(form.shape))] if form.targets else ["label"]
        self._rows.writerow(self._cells(["input"], ["example", *known, *named, *self._numbers], ["error"]))

    def _cells(self, before: list, cells: list, after: list) -> list:
        return [*before, *cells, *after] if self._form.named else cells

    def _write(self, rows, classes) -> None:
        values = rows.values.reshape(len(rows.values), -1)
        targets = rows.targets and rows.targets().reshape(values.shape)
        for i, ((name, number), label) in enumerate(zip(rows.names, rows.labels, strict=True)):
            shown = "" if number is None else number
            known = [int(label)] if targets is None else [f"{value:.7g}" for value in targets[i]]
            named = [] if classes is None else [int(classes[i]), self._form.classes[classes[i]]]
            cells = [*named, *(f"{value:.7g}" for value in values[i])]
            if i in rows.problems:
                cells = [""] * len(cells)
            self._rows.writerow(self._cells([name], [shown, *known, *cells], [rows.problems.get(i, "")]))


class JsonPredictions(PredictionFile):
    """Predictions as JSON lines, in a file or on a stream, with the ``top`` most probable classes."""

    def __init__(self, path: Path | None, form: PredictionForm, top: int, stream: IO[str] | None = None):
        super().__init__(path, form)
        self._top, self._stream = top, stream
        self._file = stream or open(self._aside, "w", encoding="ascii")  # noqa: SIM115 (closed by finish or discard)

    def _write(self, rows, classes) -> None:
        targets = rows.targets and rows.targets()
        for i in range(len(rows.values)):
            # ASCII: the same bytes in any locale, for a name of any bytes.
            self._file.write(json.dumps(self._line(rows, i, targets)) + "\n")
        if self._stream is not None:
            self._file.flush()

    def _line(self, rows: PredictionRows, i: int, targets: np.ndarray | None) -> dict:
        name, number = rows.names[i]
        line: dict = {"input": name} if number is None else {"input": name, "example": number}
        if i in rows.problems:
            return line | {"error": rows.problems[i]}
        if targets is not None:
            line[TARGET] = _numbers(targets[i])
        elif rows.labels[i] >= 0:
            line["label"] = int(rows.labels[i])
        if self._form.kind == PROBABILITY:
            probabilities, names = rows.values[i], self._form.classes
            order = np.argsort(-probabilities, kind="stable")[: self._top]
            top = [{"class": int(k), "name": names[k], "probability": _number(probabilities[k])} for k in order]
            return line | {"top": top}
        return line | {self._form.kind: _numbers(rows.values[i])}

    def _close(self) -> None:
        if self._stream is None:
            super()._close()


def _number(value) -> float | None:
    """The shortest number that is the same in the array's type; None (null) for what JSON has no number for."""
    return float(str(value)) if np.isfinite(value) else None


def _numbers(values: np.ndarray):
    return [_numbers(part) for part in values] if values.ndim else _number(values[()])


def open_predictions(
    path: Path, form: PredictionForm, about: dict, force: bool, top: int | None, stream: IO[str]
) -> PredictionFile:
    """Open a file for predictions; ``-`` is the stream, as JSON lines. ``top``: classes of a JSON line.

    Raises: DataError if it cannot be written there.
    """
    if path == STANDARD_OUTPUT:
        _check_text(path, form)
        return JsonPredictions(None, form, top or TOP, stream)
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file that ends in {ENDINGS}")
    if path.exists() and not force:
        raise DataError(f"{path} exists already; name another file, or give --force to replace it")
    if top is not None and path.suffix != ".jsonl":
        raise DataError(f"{path} gets the probabilities of all classes: leave --top out, or write .jsonl")
    try:
        if path.suffix in (".h5", ".hdf5"):
            return Hdf5Predictions(path, form, about)
        if path.suffix not in (".csv", ".jsonl"):
            raise DataError(f"{path}: its ending gives the format: name it {ENDINGS}")
        _check_text(path, form)
        return CsvPredictions(path, form) if path.suffix == ".csv" else JsonPredictions(path, form, top or TOP)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def _check_text(path: Path, form: PredictionForm) -> None:
    count = math.prod(form.shape)
    if count > MOST_IN_TEXT:
        raise DataError(
            f"{path}: {count:,} numbers an example are too many for text (at most {MOST_IN_TEXT:,}): write .h5"
        )
    if form.kind == PROBABILITY and len(form.shape) != 1:
        raise DataError(f"{path}: a class for each pixel is no line of text: write .h5")
