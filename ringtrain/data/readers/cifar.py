"""CIFAR-10 and CIFAR-100, as python batches (pickles), in a folder or a tar archive.

    batch    a dictionary: data uint8 [N, 3072], labels (CIFAR-100: fine_labels) a list of N
    3072     three planes, red, green, blue, of 32 × 32, row-major

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009, and the data set's page.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringtrain.data.content import Content, Part, Progress, make_part
from ringtrain.data.readers.members import is_archive, member_names, read_members
from ringtrain.data.readers.pickles import load_plain
from ringtrain.errors import DataError

WHAT = "CIFAR-10 or CIFAR-100: the folder of the python batches, or its .tar.gz or .tar.xz"
SIDE, CHANNELS = 32, 3
PIXELS = SIDE * SIDE * CHANNELS
SOURCE = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"


@dataclass(frozen=True, slots=True)
class CifarVariant:
    """One of the two sets: its files, and its keys, which begin with ``fine``."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    classes: int
    fine: str

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, *self.test, self.names)


def accepts(path: Path) -> bool:
    return is_archive(path) or (path.is_dir() and _layout_in(path) is not None)


def _layout_in(path: Path) -> tuple[Path, CifarVariant] | None:
    """Return the folder itself, or the one that the archive unpacks to within it."""
    for folder, layout in [(path, each) for each in LAYOUTS] + [(path / each.folder, each) for each in LAYOUTS]:
        if folder.is_dir() and _fits(layout, member_names(folder)):
            return folder, layout
    return None


def _fits(layout: CifarVariant, names) -> bool:
    return layout.names in names and any(name in names for name in (*layout.train, *layout.test))


def read(path: Path, size, progress: Progress) -> Content:
    match = _layout_in(path) if path.is_dir() else None
    if match is not None:
        folder, layout = match
        return _assemble(folder, layout, read_members(folder, layout.files, progress))
    members = read_members(path, {name for layout in LAYOUTS for name in layout.files}, progress)
    for layout in LAYOUTS:
        if _fits(layout, members):
            return _assemble(path, layout, members)
    known = "; ".join(f"{layout.name} ({layout.train[0]}, …, {layout.names})" for layout in LAYOUTS)
    raise DataError(f"{path} has no CIFAR batches; ringtrain reads these archives: {known}")


def _assemble(path: Path, layout: CifarVariant, members) -> Content:
    missing = [name for name in layout.files if name not in members]
    if missing:
        raise DataError(f"{path} has files of {layout.name}, but lacks {', '.join(missing)}: copy it again, whole")
    train, test = (_join(path, layout, names, members) for names in (layout.train, layout.test))
    classes = _read_names(members[layout.names], f"{path}: {layout.names}", f"{layout.fine}label_names")
    if len(classes) != layout.classes:
        raise DataError(f"{path}: {layout.names} has {len(classes)} names; {layout.name} has {layout.classes} classes")
    return Content(layout.name.lower(), train, test, tuple(classes), SOURCE)


def _join(path: Path, layout: CifarVariant, names, members) -> Part:
    batches = [_read_batch(members.pop(name), f"{path}: {name}", f"{layout.fine}labels") for name in names]
    planes = np.concatenate([images for images, _ in batches]).reshape(-1, CHANNELS, SIDE, SIDE)
    labels = np.concatenate([labels for _, labels in batches])
    wrong = np.flatnonzero(labels >= layout.classes)
    if wrong.size:
        raise DataError(
            f"{path}: label {labels[wrong[0]]} of example {wrong[0]} of {', '.join(names)} is not one of the "
            f"{layout.classes} classes of {layout.name}"
        )
    return make_part(np.moveaxis(planes, 1, 3), labels, str(path))


def _read_batch(data: bytes, where: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    batch = _dictionary(data, where, "data", key)
    images, labels = batch["data"], _whole_numbers(batch[key], f"{where}: {key}")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (PIXELS,):
        what = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise DataError(f"{where}: data is {what}; it must be uint8 (N, {PIXELS})")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(f"{where}: {key} is {labels.dtype} {labels.shape}; it must be {len(images)} integers")
    return images, labels


def _whole_numbers(values, where: str) -> np.ndarray:
    """Return a list or array of Python integers as an array; other values in a list could make an array of any size."""
    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, list | tuple) or not all(type(each) is int and abs(each) < 1 << 31 for each in values):
        raise DataError(f"{where} is not a list of integers")
    return np.array(values, np.int64)


def _read_names(data: bytes, where: str, key: str) -> list[str]:
    names = _dictionary(data, where, key)[key]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"{where}: {key} is not a list of names")
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]


def _dictionary(data: bytes, where: str, *keys: str) -> dict:
    value = load_plain(data, where)
    missing = [key for key in keys if key not in value]
    if missing:
        raise DataError(f"{where} is not a CIFAR batch: it has no {' and no '.join(missing)}")
    return value


TEN = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS = (
    CifarVariant("CIFAR-10", "cifar-10-batches-py", TEN, ("test_batch",), "batches.meta", 10, ""),
    CifarVariant("CIFAR-100", "cifar-100-python", ("train",), ("test",), "meta", 100, "fine_"),
)
