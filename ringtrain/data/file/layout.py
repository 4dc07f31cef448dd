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


INPUT_AXES, LABEL_AXES = "N, H, W, C", "N, …"
INPUT_TYPES, LABEL_TYPES = "uint8, or another type of whole numbers or floats", "int32, float32 or float64"
LABELS = (np.int32, np.float32, np.float64)
MOST_AXES = 5


def is_data_set(file) -> bool:
    """Return whether a file says that `data make` wrote it, or some version of it."""
    return file.id.links.exists(b"train") or _attribute(file, "format") is not None


def named_array(file, name: str) -> h5py.Dataset | str:
    """Return an array of another program's file, by a path of names; its problem as a text if it is not to be read."""
    *groups, last = name.strip("/").split("/")
    owner = file
    for group in groups:
        if not group or not _holds(owner, group, h5py.Group):
            return texts.NO_ARRAY(hint=_near(group, owner))
        owner = owner[group]
    if not last or not _holds(owner, last, h5py.Dataset):
        return texts.NO_ARRAY(hint=_near(last, owner))
    array = owner[last]
    problem = _storage_problem(array, "N, ...")
    return problem or (array if array.dtype.hasobject else hdf5.claim_problem(array) or array)


def _storage_problem(array: h5py.Dataset, axes: str) -> str | None:
    elsewhere = hdf5.foreign_storage(array) or hdf5.filter_problem(array)
    return elsewhere or (f"has no values; it must be [{axes}]" if array.shape is None else None)


def _near(name: str, group) -> str:
    return nearest(name, list(group)) if len(group) else "the group is empty"


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
        yield f"test images are {_by(shapes['test'])}, but training images are {_by(shapes['train'])}"
    types = [file[name]["images"].dtype for name in shapes]
    if len(set(types)) > 1:
        yield f"test images are of type {types[1]}, but training images of {types[0]}"
    if shapes.get("train"):
        yield from _statistic_problems(file, shapes["train"])


def _by(shape) -> str:
    return "x".join(map(str, shape))


def _kind_problem(file) -> str | None:
    kind = _attribute(file, "format")
    if not isinstance(kind, str) or kind != FORMAT:
        return (
            f"the attribute format is {kind!r}, not {FORMAT!r}: this is another kind of HDF5 file; name its arrays, "
            "as in FILE.h5:IMAGES,LABELS, or make the file with `ringtrain data make`"
        )
    version = _attribute(file, "version")
    if not isinstance(version, int | np.integer) or version != VERSION:
        return (
            f"it has version {version} of the format; this ringtrain reads version {VERSION}: make the file with "
            "`ringtrain data make`"
        )
    return None


def _attribute_problems(file) -> Iterator[str]:
    for key in ("name", "source", "licence"):
        value = _attribute(file, key)
        if not hdf5.is_text(value):
            yield f"the attribute {key} is {value!r}, not a text"
    classes = _attribute(file, "classes")
    listed = isinstance(classes, np.ndarray) and classes.ndim == 1 and (classes.size > 0 or _has_values(file))
    if not listed or not all(hdf5.is_text(name) for name in classes):
        yield texts.CLASSES_NO_NAMES
    if "checksum" in file.attrs:
        yield from _checksum_problems(file, "the file")


def _has_values(file) -> bool:
    """Return whether labels are values, which have no classes."""
    if not _holds(file, "train", h5py.Group) or not _holds(file["train"], "labels", h5py.Dataset):
        return False
    return file["train"]["labels"].dtype.kind == "f"


def _split_problems(file, name: str, shapes: dict) -> Iterator[str]:
    if not _holds(file, name, h5py.Group):
        yield f"there is no group {name!r} with images and labels: make the file with `ringtrain data make`"
        return
    group = file[name]
    counts = {}
    for key, axes in (("images", INPUT_AXES), ("labels", LABEL_AXES)):
        problem = _array_problem(group, key, axes)
        if problem:
            yield f"{name}/{key} {problem}"
        else:
            counts[key] = group[key].shape[0]
    if "images" in counts:
        shapes[name] = group["images"].shape[1:]
    if len(set(counts.values())) > 1:
        yield f"{name} has {counts['images']} images but {counts['labels']} labels: each image needs one"
    if 0 in counts.values():
        yield f"{name} has no examples"
    yield from _checksum_problems(group, name)


def _checksum_problems(owner, name: str) -> Iterator[str]:
    checksum = _attribute(owner, "checksum")
    if not isinstance(checksum, str) or not re.fullmatch("[0-9a-f]{64}", checksum):
        yield (
            f"{name} has no checksum (sha256, 64 hexadecimal digits); it has {checksum!r}: make the file with "
            "`ringtrain data make`"
        )


def _holds(group, key: str, kind) -> bool:
    """Return whether ``key`` is a ``kind`` in this very file, and no external or soft link."""
    return hdf5.is_own(group, key) and group.get(key, getclass=True) is kind


def _attribute(owner, key: str):
    """Return an attribute; None for values that no data set has: objects, references, or more than
    fits an attribute."""
    return hdf5.attribute(owner, key, (STRING, INTEGER, FLOAT))


def _array_problem(group, key: str, axes: str) -> str | None:
    if not _holds(group, key, h5py.Dataset):
        return texts.NO_ARRAY(hint=_near(key, group))
    array = group[key]
    problem = _storage_problem(array, axes)
    if problem:
        return problem
    wanted = _type_problem(key, array.dtype)
    if wanted:
        return f"is {array.dtype}; it must be {wanted}: make the file with `ringtrain data make`"
    least = 2 if key == "images" else 1
    if not least <= array.ndim <= MOST_AXES or 0 in array.shape[1:]:
        return f"has the shape {array.shape}; it must be [{axes}]"
    return hdf5.claim_problem(array)


def _type_problem(key: str, dtype: np.dtype) -> str | None:
    """Return the types that an array may have, unless it has one of them."""
    if key == "images":
        numbers = dtype.kind in "iuf" and dtype.itemsize <= 8 and dtype.isnative and dtype.subdtype is None
        return None if numbers else INPUT_TYPES
    if key == "labels":
        return None if dtype in LABELS and dtype.isnative else LABEL_TYPES
    return None if dtype == np.float32 and dtype.isnative else np.dtype(np.float32).name


def _statistic_problems(file, shape) -> Iterator[str]:
    problem = _array_problem(file, "mean_image", "H, W, C")
    if problem:
        yield f"mean_image {problem}"
    elif file["mean_image"].shape != shape:
        yield f"mean_image is {_by(file['mean_image'].shape)}, but images are {_by(shape)}"
    for key in ("mean", "std"):
        value = np.asarray(_attribute(file, key))
        if value.dtype.kind != "f" or value.shape != shape[-1:] or not np.isfinite(value).all():
            yield f"the attribute {key} is {value}; it must be {shape[-1]} finite numbers, one a channel"
