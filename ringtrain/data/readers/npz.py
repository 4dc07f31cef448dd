"""NumPy's .npz archives, by the names of their arrays."""

import zipfile
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import Content, Part, Progress, make_part, numbered_classes
from ringtrain.data.decoding import decoding
from ringtrain.errors import DataError

PAIRS: tuple[tuple[str, str, str | None, str | None], ...] = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("x", "y", None, None),
    ("images", "labels", None, None),
)


def accepts(path: Path) -> bool:
    """Return whether the path is a .npz archive."""
    return path.is_file() and path.suffix == ".npz"


def read(path: Path, size, progress: Progress) -> Content:
    """Read all of it. Raises: DataError"""
    # NumPy leaves a file open that it opened and could not read.
    with decoding(texts.NOT_READ_FILE(path=path)), open(path, "rb") as file:
        if not zipfile.is_zipfile(file):  # which NumPy would read as an array, or a pickle
            raise DataError(texts.NPZ_NO_ARCHIVE(path=path))
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            train, test = _parts(path, archive)
    return Content(path.stem, train, test, numbered_classes(train, test), f"NumPy archive {path.name}")


def _parts(path: Path, archive) -> tuple[Part, Part | None]:
    for x, y, test_x, test_y in PAIRS:
        if x in archive and y in archive:
            train = make_part(_array(path, archive, x), _array(path, archive, y), f"{path}: {x}, {y}")
            if test_x is None or test_y is None or (test_x not in archive and test_y not in archive):
                return train, None
            if test_x in archive and test_y in archive:
                test = _array(path, archive, test_x), _array(path, archive, test_y)
                return train, make_part(*test, f"{path}: {test_x}, {test_y}")
            raise DataError(texts.NPZ_PAIR(path=path, images=test_x, labels=test_y))
    raise DataError(texts.NPZ_ARRAYS(path=path, found=", ".join(archive.files) or "none"))


def _array(path: Path, archive, name: str) -> np.ndarray:
    try:
        found = archive[name]
    except TypeError:  # NumPy 2.3 raises it for a member that is no array; later ones return its bytes
        found = None
    if not isinstance(found, np.ndarray):
        raise DataError(texts.NPZ_NO_ARRAY(path=path, name=name))
    return found
