"""The HDF5 file of a data set: what its writer, its reader and its checks have in common.

/                 format="ringtrain-dataset" version=1 name source (text)
                  classes (list of text)  mean std (float64 [C], of the training images, 0 … 255)
                  checksum (sha256 in hexadecimal, see metadata_checksum; may be absent)
/mean_image       float32 [H, W, C], of the training images
/train, /test     checksum (sha256 in hexadecimal; see content.Checksum); /test may be absent
    images        uint8 [N, H, W, C]; or inputs of other types of numbers, with 1 to 4 axes after N
    labels        int32 [N], -1 where an example has none; class numbers [N, ...]; or values, float32 or float64

The arrays are opened as those of any HDF5 file are. A file may come from an untrusted source: no link to another file
is followed, and no value is an object. The checksum of the root seals class names and statistics; those of a file
without it are taken as they are.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from h5py.h5t import FLOAT, INTEGER, STRING

from ringtrain.data import texts
from ringtrain.data.file.statistics import PixelStatistics
from ringtrain.errors import DataError, nearest, plain
from ringtrain.storage import hdf5

FORMAT, VERSION = "ringtrain-dataset", 1
TEXTS, PARTS = ("name", "source"), ("train", "test")
STATISTICS = {"mean": "<f8", "std": "<f8", "mean_image": "<f4"}  # as they are sealed
MOST_NAMED = 8  # arrays in a message


def is_data_set(file) -> bool:
    """Return whether a file says that `data make` wrote it, or some version of it."""
    return file.id.links.exists(b"train") or _attribute(file, "format") is not None


def named_array(file, name: str) -> h5py.Dataset | str:
    """Return an array of another program's file, by a path of names; its problem as a text if it is not to be read."""
    array, owner, last = hdf5.find(file, name)
    if not isinstance(array, h5py.Dataset):
        return texts.NO_ARRAY.format(hint=_near(last, owner))
    problem = hdf5.storage_problem(array) or ("has no values; it must be [N, ...]" if array.shape is None else None)
    return problem or (array if array.dtype.hasobject else hdf5.claim_problem(array) or array)


def check_kind(path: Path, file) -> None:
    """Raise DataError if the file is of another format, or another version of it."""
    kind = _attribute(file, "format")
    if not isinstance(kind, str) or kind != FORMAT:
        raise DataError(
            f"{path}: the attribute format is {kind!r}, not {FORMAT!r}: this is another kind of HDF5 file, with "
            f"{', '.join(_arrays_of(file)) or 'no arrays'}; name its arrays, as in FILE.h5:IMAGES,LABELS, or make the "
            "file with `ringtrain data make`"
        )
    version = _attribute(file, "version")
    if not isinstance(version, int | np.integer) or version != VERSION:
        raise DataError(
            f"{path}: it has version {version} of the format; this ringtrain reads version {VERSION}: make the file "
            "with `ringtrain data make`"
        )


def _arrays_of(file) -> list[str]:
    """The first arrays of a file, with types and shapes."""
    arrays: list[tuple[str, h5py.Dataset]] = []
    file.visititems(lambda name, each: arrays.append((name, each)) if isinstance(each, h5py.Dataset) else None)
    return [f"{name} {array.dtype} {list(array.shape or ())}" for name, array in arrays[:MOST_NAMED]]


def checksum_of(path: Path, owner, name: str) -> str:
    """Return the checksum that a group of the file holds. Raises: DataError"""
    checksum = _attribute(owner, "checksum")
    if not isinstance(checksum, str) or not re.fullmatch("[0-9a-f]{64}", checksum):
        raise DataError(
            f"{path}: {name} has no checksum (sha256, 64 hexadecimal digits); it has {checksum!r}: make the file with "
            "`ringtrain data make`"
        )
    return checksum


def text_of(file, key: str) -> str:
    """Return one of TEXTS, for people; empty if the file has none."""
    value = _attribute(file, key)
    return plain(value) if isinstance(value, str) else ""


def class_names_of(path: Path, file) -> list[str] | None:
    """Return the names of the classes as they are stored; None if the file has none. Raises: DataError"""
    value = hdf5.attribute(file, "classes", (STRING,))
    if value is None:
        return None
    names = np.atleast_1d(value).tolist()
    if not all(isinstance(name, str) for name in names):
        raise DataError(
            f"{path}: the attribute classes is not a list of names: make the file with `ringtrain data make`"
        )
    return names


def _near(name: str, group) -> str:
    if name in list(group):  # as a link, or an object of another kind
        return f"{name} is a group, or a link that leads nowhere or out of the file"
    return nearest(name, list(group)) if len(group) else "the group is empty"


def _attribute(owner, key: str):
    """Return an attribute; None for values that no data set has: objects, references, or more than
    fits an attribute."""
    return hdf5.attribute(owner, key, (STRING, INTEGER, FLOAT))


# ── class names and statistics ────────────────────────────────────────────────────────────────────────────────
def metadata_checksum(classes: Sequence[str], statistics) -> str:
    """Return the sha256 of a line, the class names as a JSON list, and the STATISTICS, in C order."""
    running = hashlib.sha256(json.dumps(list(classes)).encode() + b"\n")
    for key, dtype in STATISTICS.items():
        running.update(np.ascontiguousarray(getattr(statistics, key), dtype).data)
    return running.hexdigest()


def read_statistics(path: Path, file, shape: tuple[int, ...], classes: Sequence[str]) -> PixelStatistics:
    """Read the statistics of inputs of this shape. Raises: DataError if they have another, or if these or the class
    names differ from the file's checksum of them."""
    image = named_array(file, "mean_image")
    if isinstance(image, str):
        raise DataError(f"{path}: mean_image {image}")
    mean, std = (np.asarray(_attribute(file, key)) for key in ("mean", "std"))
    values: dict[str, np.ndarray] = {}
    for key, array, wanted in (("mean", mean, shape[-1:]), ("std", std, shape[-1:]), ("mean_image", image, shape)):
        if array.dtype.kind == "f" and array.shape == wanted:  # others are not read: objects take any room
            values[key] = array[...]
        if key not in values or not np.isfinite(values[key]).all():
            raise DataError(
                f"{path}: {key} is {array.dtype} {array.shape}; it must be finite numbers of the shape {wanted}: make "
                "the file with `ringtrain data make`"
            )
    statistics = PixelStatistics(**{key: np.asarray(values[key], dtype) for key, dtype in STATISTICS.items()})
    checksum = metadata_checksum(classes, statistics)
    if "checksum" in file.attrs and checksum_of(path, file, "the file") != checksum:
        raise DataError(
            f"{path}: the class names, mean, std or mean_image changed after they were written: their checksum is "
            f"{checksum[:12]}…, the file says {file.attrs['checksum'][:12]}…; make the file with `ringtrain data make` "
            "or copy it again"
        )
    return statistics
