"""The HDF5 file of a data set, in one place: writing, sealing, checking and opening follow from this description.

/                 format="ringtrain-dataset" version=1 name source licence (text)
                  classes (list of text)  mean std (float64 [C], of the training images, 0 … 255)
                  checksum (sha256 in hexadecimal, see metadata_checksum; may be absent)
/mean_image       float32 [H, W, C], of the training images
/train, /test     checksum (sha256 in hexadecimal; see content.Checksum); /test may be absent
    images        uint8 [N, H, W, C]; or inputs of other types of numbers, with 1 to 4 axes after N
    labels        int32 [N], -1 where an example has none; class numbers [N, ...]; or values, float32 or float64

Problems are texts, found without reading the images: opening raises the first, `data check` shows them all. The file
may come from an untrusted source: no link to another file is followed, and no value is an object.

The checksum of the root seals class names and statistics. A file without it, from an earlier ringtrain or another
program, is compared with the statistics of its training images: at opening if the set is small enough to be verified,
else by `ringtrain data check`. Its class names are taken as they are.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import h5py
import numpy as np
from h5py.h5t import FLOAT, INTEGER, STRING

from ringtrain.data import texts
from ringtrain.data.file.statistics import PixelStatistics
from ringtrain.errors import nearest
from ringtrain.storage import hdf5

FORMAT, VERSION = "ringtrain-dataset", 1
TEXTS, PARTS = ("name", "source", "licence"), ("train", "test")
STATISTICS = {"mean": "<f8", "std": "<f8", "mean_image": "<f4"}  # as they are sealed
TOLERANCE = 1e-4  # of the statistics, on the scale 0 … 255: a file may have been made by other arithmetic
MOST_AXES = 5
MOST_NAMED = 8  # arrays in a message


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The form of an array. ``axes``, ``types``: in words; ``fits``: whether it may have a type"""

    axes: str
    types: str
    fits: Callable[[np.dtype], bool]
    least_axes: int = 1


ARRAYS = {
    "images": ArrayForm(
        "N, H, W, C",
        "uint8, or another type of whole numbers or floats",
        lambda dtype: dtype.kind in "iuf" and dtype.itemsize <= 8,
        least_axes=2,
    ),
    "labels": ArrayForm("N, …", "int32, float32 or float64", lambda dtype: dtype in (np.int32, np.float32, np.float64)),
    "mean_image": ArrayForm("H, W, C", "float32", lambda dtype: dtype == np.float32),
}


def is_data_set(file) -> bool:
    """Return whether a file says that `data make` wrote it, or some version of it."""
    return file.id.links.exists(b"train") or _attribute(file, "format") is not None


def named_array(file, name: str) -> h5py.Dataset | str:
    """Return an array of another program's file, by a path of names; its problem as a text if it is not to be read."""
    array, owner, last = hdf5.find(file, name)
    if not isinstance(array, h5py.Dataset):
        return texts.NO_ARRAY.format(hint=_near(last, owner))
    problem = _storage_problem(array, "N, ...")
    return problem or (array if array.dtype.hasobject else hdf5.claim_problem(array) or array)


# ── the layout ────────────────────────────────────────────────────────────────────────────────────────────────
def layout_problems(file) -> Iterator[str]:
    """Yield each problem of an open file; one without any can be opened."""
    fatal = _kind_problem(file)
    if fatal:
        yield fatal
        return
    yield from _attribute_problems(file)
    images: dict[str, h5py.Dataset] = {}
    for name in PARTS:
        if name == "train" or file.id.links.exists(name.encode()):
            yield from _part_problems(file, name, images)
    if len(images) == len(PARTS):
        train, test = images.values()
        if train.shape[1:] != test.shape[1:]:
            yield f"test images are {_by(test.shape[1:])}, but training images are {_by(train.shape[1:])}"
        if train.dtype != test.dtype:
            yield f"test images are of type {test.dtype}, but training images of {train.dtype}"
    if "train" in images:
        yield from _statistics_form_problems(file, images["train"].shape[1:])


def _by(shape) -> str:
    return "x".join(map(str, shape))


def _kind_problem(file) -> str | None:
    kind = _attribute(file, "format")
    if not isinstance(kind, str) or kind != FORMAT:
        return (
            f"the attribute format is {kind!r}, not {FORMAT!r}: this is another kind of HDF5 file, with "
            f"{', '.join(_arrays_of(file)) or 'no arrays'}; name its arrays, as in FILE.h5:IMAGES,LABELS, or make the "
            "file with `ringtrain data make`"
        )
    version = _attribute(file, "version")
    if not isinstance(version, int | np.integer) or version != VERSION:
        return (
            f"it has version {version} of the format; this ringtrain reads version {VERSION}: make the file with "
            "`ringtrain data make`"
        )
    return None


def _arrays_of(file) -> list[str]:
    """The first arrays of a file, with types and shapes."""
    arrays: list[tuple[str, h5py.Dataset]] = []
    file.visititems(lambda name, each: arrays.append((name, each)) if isinstance(each, h5py.Dataset) else None)
    return [f"{name} {array.dtype} {list(array.shape or ())}" for name, array in arrays[:MOST_NAMED]]


def _attribute_problems(file) -> Iterator[str]:
    for key in TEXTS:
        value = _attribute(file, key)
        if not hdf5.is_text(value):
            yield f"the attribute {key} is {value!r}, not a text"
    classes = _attribute(file, "classes")
    labels = _holds(file, "train", h5py.Group) and _holds(file["train"], "labels", h5py.Dataset)
    values = labels and file["train"]["labels"].dtype.kind == "f"  # which have no classes
    listed = isinstance(classes, np.ndarray) and classes.ndim == 1 and (classes.size > 0 or values)
    if not listed or not all(hdf5.is_text(name) for name in classes):
        yield texts.CLASSES_NO_NAMES
    if "checksum" in file.attrs:
        yield from _checksum_form_problems(file, "the file")


def _part_problems(file, name: str, images: dict[str, h5py.Dataset]) -> Iterator[str]:
    """Yield each problem of a part; good images are put into ``images``."""
    if not _holds(file, name, h5py.Group):
        yield f"there is no group {name!r} with images and labels: make the file with `ringtrain data make`"
        return
    group, counts = file[name], {}
    for key in ("images", "labels"):
        problem = _array_problem(group, key)
        if problem:
            yield f"{name}/{key} {problem}"
        else:
            counts[key] = group[key].shape[0]
    if "images" in counts:
        images[name] = group["images"]
    if len(set(counts.values())) > 1:
        yield f"{name} has {counts['images']} images but {counts['labels']} labels: each image needs one"
    if 0 in counts.values():
        yield f"{name} has no examples"
    yield from _checksum_form_problems(group, name)


def _checksum_form_problems(owner, name: str) -> Iterator[str]:
    checksum = _attribute(owner, "checksum")
    if not isinstance(checksum, str) or not re.fullmatch("[0-9a-f]{64}", checksum):
        yield (
            f"{name} has no checksum (sha256, 64 hexadecimal digits); it has {checksum!r}: make the file with "
            "`ringtrain data make`"
        )


def _statistics_form_problems(file, shape) -> Iterator[str]:
    problem = _array_problem(file, "mean_image")
    if problem:
        yield f"mean_image {problem}"
    elif file["mean_image"].shape != shape:
        yield f"mean_image is {_by(file['mean_image'].shape)}, but images are {_by(shape)}"
    for key in ("mean", "std"):
        value = np.asarray(_attribute(file, key))
        if value.dtype.kind != "f" or value.shape != shape[-1:] or not np.isfinite(value).all():
            yield f"the attribute {key} is {value}; it must be {shape[-1]} finite numbers, one a channel"


def _array_problem(group, key: str) -> str | None:
    if not _holds(group, key, h5py.Dataset):
        return texts.NO_ARRAY.format(hint=_near(key, group))
    array, form = group[key], ARRAYS[key]
    problem = _storage_problem(array, form.axes)
    if problem:
        return problem
    if not form.fits(array.dtype) or not array.dtype.isnative:
        return f"is {array.dtype}; it must be {form.types}: make the file with `ringtrain data make`"
    if not form.least_axes <= array.ndim <= MOST_AXES or 0 in array.shape[1:]:
        return f"has the shape {array.shape}; it must be [{form.axes}]"
    return hdf5.claim_problem(array)


def _storage_problem(array: h5py.Dataset, axes: str) -> str | None:
    return hdf5.storage_problem(array) or (f"has no values; it must be [{axes}]" if array.shape is None else None)


def _holds(group, key: str, kind) -> bool:
    """Return whether ``key`` is a ``kind`` in this very file, and no external or soft link."""
    return hdf5.is_own(group, key) and group.get(key, getclass=True) is kind


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


def read_statistics(file) -> PixelStatistics:
    """Read the statistics of a file whose layout is good."""
    mean, std = (np.asarray(file.attrs[key], np.float64) for key in ("mean", "std"))
    return PixelStatistics(mean, std, file["mean_image"][...])


def seal_problems(file) -> Iterator[str]:
    """Yield a problem if class names and statistics differ from the file's checksum of them."""
    checksum = metadata_checksum(file.attrs["classes"], read_statistics(file))
    if file.attrs.get("checksum", checksum) != checksum:
        yield (
            "the class names, mean, std or mean_image changed after they were written: their checksum is "
            f"{checksum[:12]}…, the file says {file.attrs['checksum'][:12]}…; make the file with `ringtrain data make` "
            "or copy it again"
        )


def statistic_problems(noted: PixelStatistics, computed: PixelStatistics) -> Iterator[str]:
    """Yield a problem for each statistic that differs from the training inputs'."""
    for key in STATISTICS:
        # Not "off > TOLERANCE": a NaN must not pass.
        value, right = getattr(noted, key), getattr(computed, key)
        off = (np.abs(value - right) / np.maximum(1, np.abs(right) / 255)).max()
        if not off <= TOLERANCE:
            yield (
                f"{key} differs by up to {off:.3g} from that of the training images: make the file with `ringtrain "
                "data make` or copy it again"
            )
