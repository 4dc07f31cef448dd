"""The description of a data set in its file, read without the images."""

from dataclasses import dataclass

import numpy as np

from ringtrain.data.file.contents import class_names
from ringtrain.data.file.source import input_shape, open_source

CLASS_NUMBERS = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class SplitShape:
    """The size of a split. ``shape``: of one input, (H, W, C) of an image; ``label_shape``: of each label."""

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


def read_form(path, test=None, extents: int | None = None) -> DatasetForm:
    """Read the form of the data set that ``--data`` names. Class numbers without names are counted by reading all
    labels.

    Raises: DataError if a file is missing, is no data set, or its layout is wrong.
    """
    source = open_source(path, test, extents)
    source.verify()
    part = source.parts["train"]
    count, *shape = part.inputs.shape
    train = SplitShape(count, input_shape(tuple(shape), extents), part.label_shape, part.label_dtype)
    return DatasetForm(source.name, class_names(source), train)
