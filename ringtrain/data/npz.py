"""NumPy's .npz archives, by the names of their arrays."""

import zipfile
from pathlib import Path

import numpy as np

from ringtrain.data.content import Content, Part, Progress, make_part, numbered_classes
from ringtrain.data.decoding import decoding
from ringtrain.errors import DataError

PAIRS = (("x_train", "y_train", "x_test", "y_test"), ("x", "y", None, None), ("images", "labels", None, None))
UNDERSTOOD = "x_train and y_train (x_test and y_test too), x and y, or images and labels"
WHAT = f".npz with the arrays {UNDERSTOOD}"


def accepts(path: Path) -> bool:
    return path.is_file() and path.suffix == ".npz"


def read(path: Path, size, progress: Progress) -> Content:
    # NumPy leaves a file open that it opened itself and could not read.
    with decoding(f"{path} could not be read"), open(path, "rb") as file:
        if not zipfile.is_zipfile(file):  # which NumPy would read as an array, or a pickle
            raise DataError(f"{path} could not be read: it is no whole archive; write it by numpy.savez")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            train, test = _parts(path, archive)
    return Content(path.stem, train, test, numbered_classes(train, test), f"NumPy archive {path.name}")


def _parts(path: Path, archive) -> tuple[Part, Part | None]:
    for x, y, test_x, test_y in PAIRS:
        if x in archive and y in archive:
            train = make_part(_array(path, archive, x), _array(path, archive, y), f"{path}: {x}, {y}")
            if test_x is None or (test_x not in archive and test_y not in archive):
                return train, None
            if test_x in archive and test_y in archive:
                test = _array(path, archive, test_x), _array(path, archive, test_y)
                return train, make_part(*test, f"{path}: {test_x}, {test_y}")
            raise DataError(f"{path} has one of {test_x} and {test_y}: both are needed, or none")
    raise DataError(f"{path} has the arrays {', '.join(archive.files) or 'none'}; understood are {UNDERSTOOD}")


def _array(path: Path, archive, name: str) -> np.ndarray:
    found = archive[name]
    if not isinstance(found, np.ndarray):  # NumPy hands out members that are no arrays as bytes
        raise DataError(f"{path}: {name} is no array of NumPy's")
    return found
