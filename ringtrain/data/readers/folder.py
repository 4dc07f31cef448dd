"""Folders of images, one subfolder a class, under train/ and test/ (or val/, valid/, validation/), or without these.

    flowers/train/rose/1.jpg   flowers/train/tulip/7.png   flowers/val/rose/3.jpg
    flowers/rose/1.jpg         flowers/tulip/red/7.png

Images in folders inside a class folder are of that class. Class numbers follow the order of the names; examples are
ordered by class and name. If one image has colour, all become RGB; if none has, all stay grey.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ringtrain.data.content import Content, Part, Progress
from ringtrain.data.images import FilePicture, decode_image, resize
from ringtrain.data.readers import image_walk
from ringtrain.data.readers.image_walk import BROKEN, IMAGE, OTHER, SUFFIXES, is_image, listed, walk
from ringtrain.data.stored.base import MemoryArray, StoredArray
from ringtrain.errors import DataError, nearest, plain

WHAT = "a folder of images: one subfolder a class, under train/ and test/ (or val/, valid/, validation/) or directly"
PARTS = {"train": ("train", "training"), "test": ("test", "testing", "val", "valid", "validation")}  # in any case


def accepts(path: Path) -> bool:
    if not path.is_dir():
        return False
    folders = [folder for root in parts_of(path).values() for folder in class_folders(root)]
    return any(kind != OTHER for folder in folders for _, kind in walk(str(folder)))


def class_folders(path: Path) -> list[Path]:
    """Return the folders in a folder, by name, without hidden ones, and those that lead back to it."""
    return [Path(entry.path) for entry in listed(str(path)) if image_walk.is_folder(entry)]


def parts_of(path: Path) -> dict[str, Path]:
    """Return {"train": folder, "test": folder}, or train alone if there is no division or no test part. Raises:
    DataError if there are two folders of one part, one without classes, or a test part alone"""
    folders = class_folders(path)
    # A folder train/ without subfolders is a class of that name.
    named = {part: [folder for folder in folders if folder.name.lower() in names] for part, names in PARTS.items()}
    named["train"] = [folder for folder in named["train"] if class_folders(folder)]
    if not named["train"]:
        for folder in named["test"]:
            if class_folders(folder) and not any(is_image(entry.name) for entry in listed(str(folder))):
                raise DataError(
                    f"{path} has {folder.name}/ with folders of classes, but no train/: name {path}/{folder.name}, or "
                    "add a train/"
                )
        return {"train": path}
    for part, (first, *others) in ((part, each) for part, each in named.items() if each):
        if others:
            raise DataError(
                f"{path} has both {first.name}/ and {others[0].name}/: only one can be the {part} part; move the "
                "other away"
            )
        if not class_folders(first):
            raise DataError(f"{first} has no folders of classes: add them for the {part} part, or move it away")
    return {part: each[0] for part, each in named.items() if each}


def read(path: Path, size, progress: Progress) -> Content:
    """List the images; each is decoded when it is written. Raises: DataError"""
    roots = parts_of(path)
    classes, folders = labelled_folders(roots)
    scanned = [(name, label, *images_of(folder)) for name, folder, label in folders]
    files = {name: [(Path(file), each[1]) for each in scanned if each[0] == name for file in each[2]] for name in roots}
    shape, notes = _survey([file for part in files.values() for file, _ in part], size)
    parts = {}
    for name, part in files.items():
        labels = np.array([label for _, label in part], np.int32)
        parts[name] = Part(FolderImages([file for file, _ in part], shape), MemoryArray(labels))
    notes += left_out([*beside(path, roots), *(other for each in scanned for other in each[3])])
    name = path.resolve().name
    return Content(name, parts["train"], parts.get("test"), classes, f"folder of images {name}", notes=tuple(notes))


def beside(path: Path, roots: dict[str, Path]) -> list[str]:
    """Return what lies beside the parts and the folders of classes, by name, without hidden entries."""
    others = []
    for folder in {path: None, **dict.fromkeys(roots.values())}:
        taken = class_folders(folder) if folder in roots.values() else roots.values()
        others += [entry.path for entry in listed(str(folder)) if Path(entry.path) not in taken]
    return others


def left_out(others: Sequence[str], count: int | None = None) -> list[str]:
    """Return a note on files and folders that a data set leaves out; none if it leaves out none. ``count``: of them, if
    ``others`` are only the first"""
    if not others:
        return []
    what = f"{count or len(others)} files or folders are not images of a class and were left out"
    return [f"{what}: {plain(others[0])}, …"]


def labelled_folders(
    roots: dict[str, Path], class_names: Sequence[str] = ()
) -> tuple[tuple[str, ...], list[tuple[str, Path, int]]]:
    """Return the classes, and (part, folder, label) of each folder of a class. ``class_names``: the classes, in place
    of the training part's. Raises: DataError for a folder that is none of them"""
    classes = tuple(class_names or (folder.name for folder in class_folders(roots["train"])))
    numbers = {name: number for number, name in enumerate(classes)}
    folders = [(part, folder) for part, root in roots.items() for folder in class_folders(root)]
    for _, folder in folders:
        if folder.name not in numbers:
            known = nearest(folder.name, classes)
            if class_names and all(map(str.isdecimal, classes)):
                known += ". The numbers of shards get names by a classes.txt beside the first shard, one a line"
            raise DataError(f"{folder}: the training part has no class of this name; {known}")
    return classes, [(part, folder, numbers[folder.name]) for part, folder in folders]


def images_of(folder: Path, broken: bool = False) -> tuple[list[str], list[str]]:
    """Return the images of a class, in its folder and all folders in it, by name; and what is none. Raises: DataError
    if there is no image, or for a broken link to one, unless ``broken`` ones are taken: the set is not whole"""
    paths: dict[str, list[str]] = {IMAGE: [], BROKEN: [], OTHER: []}
    for path, kind in walk(str(folder)):
        paths[IMAGE if broken and kind == BROKEN else kind].append(path)
    if paths[BROKEN]:
        raise DataError(
            f"{folder} has broken links to images ({len(paths[BROKEN])}), the first is {plain(paths[BROKEN][0])}: "
            "bring their files back (`git annex get`), remove the links, or train and evaluate with --bad-images skip"
        )
    if not paths[IMAGE]:
        raise DataError(f"{folder} has no images: remove it, or add some (of {', '.join(sorted(SUFFIXES))})")
    return paths[IMAGE], paths[OTHER]


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
            f"images differ in size: {first} is {one[0]}x{one[1]} and {second} is {two[0]}x{two[1]} (height "
            "x width): say --size HxW to give all the same size"
        )
    height, width = size or next(iter(sizes))
    colour = grey < len(files)
    notes = [f"{grey} grey images among {len(files)} became RGB"] if colour and grey else []
    if set(sizes) != {(height, width)}:
        notes.append(f"images were resized to {height}x{width}, without keeping their proportions")
    return (height, width, 3 if colour else 1), notes


class FolderImages(StoredArray):
    """The images of files, decoded when they are read."""

    def __init__(self, files: Sequence[Path], shape):
        self._files = files
        self.where, self.shape, self.dtype = str(files[0].parent), (len(files), *shape), np.dtype(np.uint8)

    def read(self, start: int, stop: int, out) -> None:
        for row, file in zip(out, self._files[start:stop], strict=True):
            height, width, channels = row.shape
            row[...] = resize(decode_image(file.read_bytes(), str(file), channels), height, width)
