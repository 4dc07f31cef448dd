"""Folders of images, one subfolder a class, under train/ and test/ (or val/), or without these two.

    flowers/train/rose/1.jpg   flowers/train/tulip/7.png   flowers/val/rose/3.jpg
    flowers/rose/1.jpg         flowers/tulip/7.png

Class numbers follow the order of the names; examples are ordered by class and name. If one image has colour, all
become RGB; if none has, all stay grey.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import Content, Progress
from ringtrain.data.file.source import SourcePart
from ringtrain.data.images import FilePicture, decode_image, resize
from ringtrain.data.stored.base import MemoryArray, StoredArray
from ringtrain.errors import DataError, nearest

SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
TESTS = ("test", "val")


def accepts(path: Path) -> bool:
    """Return whether the path is a folder of folders with images."""
    return path.is_dir() and any(_images(folder) for root in parts_of(path).values() for folder in class_folders(root))


def class_folders(path: Path) -> list[Path]:
    """Return the folders in a folder, by name, without hidden ones."""
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))


def _images(path: Path) -> list[Path]:
    return [file for file in _files(path) if file.suffix.lower() in SUFFIXES]


def parts_of(path: Path) -> dict[str, Path]:
    """Return {"train": folder, "test": folder}, or train alone if there is no division or no test part. Raises:
    DataError if there are two test parts"""
    # A folder train/ without subfolders is a class of that name.
    if not (path / "train").is_dir() or not class_folders(path / "train"):
        return {"train": path}
    tests = [path / name for name in TESTS if (path / name).is_dir()]
    if len(tests) > 1:
        raise DataError(texts.TWO_TEST_FOLDERS(path=path))
    return dict(zip(("train", "test"), (path / "train", *tests[:1]), strict=False))


def read(path: Path, size, progress: Progress) -> Content:
    """List the images; each is decoded when it is written. Raises: DataError"""
    roots = parts_of(path)
    classes, folders = labelled_folders(roots)
    listed = {
        name: [(file, label) for part, folder, label in folders if part == name for file in images_of(folder)]
        for name in roots
    }
    shape, notes = _survey([file for files in listed.values() for file, _ in files], size)
    parts = {name: _part(files, shape) for name, files in listed.items()}
    notes += _left_out(path, roots)
    name = path.resolve().name
    return Content(name, parts["train"], parts.get("test"), classes, f"folder of images {name}", notes=tuple(notes))


def _left_out(path: Path, roots: dict[str, Path]) -> list[str]:
    """Describe the files of the folder that the data set leaves out."""
    classes = [folder for root in roots.values() for folder in class_folders(root)]
    others = [file for folder in classes for file in _files(folder) if file.suffix.lower() not in SUFFIXES]
    others += [file for root in {path, *roots.values()} for file in _files(root)]
    if path not in roots.values():
        others += [folder for folder in class_folders(path) if folder not in roots.values()]
    if not others:
        return []
    return [texts.LEFT_OUT(count=len(others), first=others[0])]


def labelled_folders(
    roots: dict[str, Path], given: Sequence[str] = ()
) -> tuple[tuple[str, ...], list[tuple[str, Path, int]]]:
    """Return the classes, and (part, folder, label) of each folder of a class. ``given``: the classes, in place of
    those of the training part. Raises: DataError for a folder that is none of them"""
    classes = tuple(given or (folder.name for folder in class_folders(roots["train"])))
    numbers = {name: number for number, name in enumerate(classes)}
    found = [(part, folder) for part, root in roots.items() for folder in class_folders(root)]
    for _, folder in found:
        if folder.name not in numbers:
            raise DataError(texts.UNKNOWN_CLASS(folder=folder, hint=nearest(folder.name, classes)))
    return classes, [(part, folder, numbers[folder.name]) for part, folder in found]


def images_of(folder: Path) -> list[Path]:
    """Return the images of a class, by name. Raises: DataError if there is none"""
    images = _images(folder)
    if not images:
        raise DataError(texts.NO_IMAGES(folder=folder, suffixes=", ".join(sorted(SUFFIXES))))
    return images


# ── images ──────────────────────────────────────────────────────────────────────────────────────────────────
def _survey(files, size) -> tuple[tuple[int, int, int], list[str]]:
    """Return the shape [H, W, C] of all examples, from the headers alone, and notes about them."""
    sizes: dict[tuple[int, int], Path] = {}
    grey = 0
    for file in files:
        image = FilePicture(file.read_bytes(), str(file), 3)
        sizes.setdefault((image.height, image.width), file)
        grey += image.grey
    if len(sizes) > 1 and size is None:
        (one, first), (two, second) = list(sizes.items())[:2]
        raise DataError(
            texts.SIZES_DIFFER(
                first=first, first_size=f"{one[0]}x{one[1]}", second=second, second_size=f"{two[0]}x{two[1]}"
            )
        )
    height, width = size or next(iter(sizes))
    colour = grey < len(files)
    notes = [texts.GREY_AMONG_COLOUR(grey=grey, count=len(files))] if colour and grey else []
    if set(sizes) != {(height, width)}:
        notes.append(texts.RESIZED(height=height, width=width))
    return (height, width, 3 if colour else 1), notes


class FolderImages(StoredArray):
    """The images of files, decoded when they are read."""

    def __init__(self, files: Sequence[Path], shape):
        self._files = files
        self.where, self.shape, self.dtype = str(files[0].parent), (len(files), *shape), np.dtype(np.uint8)

    def read(self, start: int, stop: int, out) -> None:
        for row, file in zip(out, self._files[start:stop], strict=True):
            row[...] = _pixels(file, self.shape[1:])


def _part(listed, shape) -> SourcePart:
    labels = np.array([label for _, label in listed], np.int32)
    return SourcePart(FolderImages([file for file, _ in listed], shape), MemoryArray(labels))


def _pixels(file: Path, shape):
    """Read the pixels of an image. Shapes: → uint8 [H, W, C]"""
    height, width, channels = shape
    return resize(decode_image(file.read_bytes(), str(file), channels), height, width)
