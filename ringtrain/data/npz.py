"""NumPy's .npz archives, by the names of their arrays."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from ringtrain.data.content import Content, Part, Progress, make_part, numbered_classes
from ringtrain.errors import DataError

PAIRS = (("x_train", "y_train", "x_test", "y_test"), ("x", "y", None, None), ("images", "labels", None, None))
UNDERSTOOD = "x_train and y_train (x_test and y_test too), x and y, or images and labels"
WHAT = f".npz with the arrays {UNDERSTOOD}"


def accepts(path: Path) -> bool:
    return path.is_file() and path.suffix == ".npz"


def read(path: Path, size, progress: Progress) -> Content:
    try:
        # NumPy leaves a file open that it opened itself and could not read.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            train, test = _parts(path, archive)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} could not be read: {error}") from error
    return Content(path.stem, train, test, numbered_classes(train, test), f"NumPy archive {path.name}")


def _parts(path: Path, archive) -> tuple[Part, Part | None]:
    for x, y, test_x, test_y in PAIRS:
        if x in archive and y in archive:
            train = make_part(archive[x], archive[y], f"{path}: {x}, {y}")
            if test_x is None or (test_x not in archive and test_y not in archive):
                return train, None
            if test_x in archive and test_y in archive:
                return train, make_part(archive[test_x], archive[test_y], f"{path}: {test_x}, {test_y}")
            raise DataError(f"{path} has one of {test_x} and {test_y}: both are needed, or none")
    raise DataError(f"{path} has the arrays {', '.join(archive.files) or 'none'}; understood are {UNDERSTOOD}")
