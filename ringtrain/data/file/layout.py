"""Problems in the form of a data set's HDF5 file, as text, found without reading the images.

Opening raises the first problem; ``data check`` shows them all. The file may come from an untrusted source: no link
to another file is followed, and no value is an object.
"""

import re
from collections.abc import Iterator

import h5py
import numpy as np
from h5py.h5t import FLOAT, INTEGER, STRING

from ringtrain.data import texts
from ringtrain.errors import nearest
from ringtrain.storage import hdf5

FORMAT, VERSION = "ringtrain-dataset", 1


def layout_problems(file) -> Iterator[str]:
    """Yield each problem of an open file; :mod:`dataset` can read a file without any."""
    fatal = _kind_problem(file)
    if fatal:
        yield fatal
        return
    yield from _attribute_problems(file)
    shapes: dict[str, tuple[int, ...]] = {}
    for name in ("train", "test"):
        if name == "test" and not file.id.links.exists(b"test"):
            continue
        yield from _split_problems(file, name, shapes)
    if shapes.get("train", ()) and shapes.get("test", ()) and shapes["train"] != shapes["test"]:
        yield texts.SPLITS_DIFFER(test=_by(shapes["test"]), train=_by(shapes["train"]))
    if shapes.get("train"):
        yield from _statistic_problems(file, shapes["train"])


def _by(shape) -> str:
    return "x".join(map(str, shape))


def _kind_problem(file) -> str | None:
    found = _attribute(file, "format")
    if not isinstance(found, str) or found != FORMAT:
        return texts.OTHER_FORMAT(found=found, wanted=FORMAT)
    version = _attribute(file, "version")
    if not isinstance(version, int | np.integer) or version != VERSION:
        return texts.OTHER_VERSION(version=version, wanted=VERSION)
    return None


def _attribute_problems(file) -> Iterator[str]:
    for key in ("name", "source", "licence"):
        found = _attribute(file, key)
        if not hdf5.is_text(found):
            yield texts.ATTRIBUTE_NO_TEXT(key=key, found=found)
    classes = _attribute(file, "classes")
    listed = isinstance(classes, np.ndarray) and classes.ndim == 1 and classes.size > 0
    if not listed or not all(hdf5.is_text(name) for name in classes):
        yield texts.CLASSES_NO_NAMES
    if "checksum" in file.attrs:
        yield from _checksum_problems(file, "the file")


def _split_problems(file, name: str, shapes: dict) -> Iterator[str]:
    if not _holds(file, name, h5py.Group):
        yield texts.NO_GROUP(name=name)
        return
    group = file[name]
    counts = {}
    for key, dtype, axes in (("images", np.uint8, "N, H, W, C"), ("labels", np.int32, "N")):
        problem = _array_problem(group, key, dtype, axes)
        if problem:
            yield f"{name}/{key} {problem}"
        else:
            counts[key] = group[key].shape[0]
    if "images" in counts:
        shapes[name] = group["images"].shape[1:]
    if len(set(counts.values())) > 1:
        yield texts.COUNTS_DIFFER(name=name, images=counts["images"], labels=counts["labels"])
    if 0 in counts.values():
        yield texts.SPLIT_EMPTY(name=name)
    yield from _checksum_problems(group, name)


def _checksum_problems(owner, name: str) -> Iterator[str]:
    found = _attribute(owner, "checksum")
    if not isinstance(found, str) or not re.fullmatch("[0-9a-f]{64}", found):
        yield texts.NO_CHECKSUM(name=name, found=found)


def _holds(group, key: str, kind) -> bool:
    """Return whether ``key`` is a ``kind`` in this very file, and no external or soft link."""
    return hdf5.is_own(group, key) and group.get(key, getclass=True) is kind


def _attribute(owner, key: str):
    """Return an attribute; None for values that no data set has: objects, references, or more than
    fits an attribute."""
    return hdf5.attribute(owner, key, (STRING, INTEGER, FLOAT))


def _array_problem(group, key: str, dtype, axes: str) -> str | None:
    if not _holds(group, key, h5py.Dataset):
        hint = nearest(key, list(group)) if len(group) else texts.GROUP_EMPTY
        return texts.NO_ARRAY(hint=hint)
    array = group[key]
    problem = hdf5.foreign_storage(array) or hdf5.filter_problem(array)
    if problem:
        return problem
    if array.shape is None:
        return texts.NO_VALUES(axes=axes)
    if array.dtype != dtype:
        return texts.OTHER_TYPE(dtype=array.dtype, wanted=np.dtype(dtype).name)
    if array.ndim != axes.count(",") + 1 or 0 in array.shape[1:]:
        return texts.OTHER_SHAPE(shape=array.shape, axes=axes)
    return hdf5.claim_problem(array)


def _statistic_problems(file, shape) -> Iterator[str]:
    problem = _array_problem(file, "mean_image", np.float32, "H, W, C")
    if problem:
        yield texts.MEAN_IMAGE(problem=problem)
    elif file["mean_image"].shape != shape:
        yield texts.MEAN_IMAGE_SHAPE(found=_by(file["mean_image"].shape), shape=_by(shape))
    for key in ("mean", "std"):
        value = np.asarray(_attribute(file, key))
        if value.dtype.kind != "f" or value.shape != shape[-1:] or not np.isfinite(value).all():
            yield texts.STATISTIC_MALFORMED(key=key, value=value, channels=shape[-1])
