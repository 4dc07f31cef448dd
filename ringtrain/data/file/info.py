"""The description of a data set in its file, read without the images."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.file.dataset import DIGITS, hdf5_errors, open_hdf5
from ringtrain.data.file.layout import layout_problems
from ringtrain.errors import DataError, plain

CLASS_NUMBERS = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class SplitShape:
    """The size of a split. ``shape``: of each input; ``label_shape``: of each label."""

    count: int
    shape: tuple[int, ...]
    label_shape: tuple[int, ...] = ()
    label_dtype: np.dtype = CLASS_NUMBERS


@dataclass(frozen=True, slots=True)
class DatasetForm:
    """The classes and splits of a data set."""

    name: str
    classes: tuple[str, ...]
    train: SplitShape


def read_form(path) -> DatasetForm:
    """Read the form of a file, or of the bundled data set if ``path`` is "digits".

    Raises: DataError if the file is missing, is no data set, or its layout is wrong.
    """
    path = DIGITS if str(path) == "digits" else Path(path)
    with open_hdf5(path) as file, hdf5_errors(path):
        for problem in layout_problems(file):
            raise DataError(texts.IN_FILE(path=path, problem=problem))
        count, *shape = file["train/images"].shape
        classes = tuple(map(plain, file.attrs["classes"]))
        return DatasetForm(plain(file.attrs["name"]), classes, SplitShape(count, tuple(shape)))
