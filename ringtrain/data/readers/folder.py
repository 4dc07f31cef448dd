"""Folders of images, one subfolder a class, under train/ and test/ (or val/), or without these two.

    flowers/train/rose/1.jpg   flowers/train/tulip/7.png   flowers/val/rose/3.jpg
    flowers/rose/1.jpg         flowers/tulip/7.png

Class numbers follow the order of the names; examples are ordered by class and name. If one image has colour, all
become RGB; if none has, all stay grey.
"""

from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import Content, Part, Progress
from ringtrain.data.readers.decoding import decoding
from ringtrain.errors import DataError, nearest

SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
# By a file's bytes, not its name: other formats of Pillow start programs (PostScript).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
GREY, COLOUR = (
    frozenset(("1", "L", "LA")),
    frozenset(("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")),
)
TESTS = ("test", "val")


def accepts(path: Path) -> bool:
    """Return whether the path is a folder of folders with images."""
    return path.is_dir() and any(_images(folder) for root in _roots(path).values() for folder in _folders(root))


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))


def _images(path: Path) -> list[Path]:
    return [file for file in _files(path) if file.suffix.lower() in SUFFIXES]


def _roots(path: Path) -> dict[str, Path]:
    """Return {"train": folder, "test": folder}, or train alone if there is no division or no test part."""
    # A folder train/ without subfolders is a class of that name.
    if not (path / "train").is_dir() or not _folders(path / "train"):
        return {"train": path}
    tests = [path / name for name in TESTS if (path / name).is_dir()]
    return dict(zip(("train", "test"), (path / "train", *tests[:1]), strict=False))


def read(path: Path, size, progress: Progress) -> Content:
    """Read all images. Raises: DataError"""
    roots = _roots(path)
    if "test" in roots and all((path / name).is_dir() for name in TESTS):
        raise DataError(texts.TWO_TEST_FOLDERS(path=path))
    classes = tuple(folder.name for folder in _folders(roots["train"]))
    listed = {name: _list(root, classes) for name, root in roots.items()}
    shape, notes = _survey([file for files in listed.values() for file, _ in files], size)
    parts = {name: _load(files, shape, progress) for name, files in listed.items()}
    notes += _left_out(path, roots)
    name = path.resolve().name
    return Content(name, parts["train"], parts.get("test"), classes, f"folder of images {name}", notes=tuple(notes))


def _left_out(path: Path, roots: dict[str, Path]) -> list[str]:
    """Describe the files of the folder that the data set leaves out."""
    classes = [folder for root in roots.values() for folder in _folders(root)]
    others = [file for folder in classes for file in _files(folder) if file.suffix.lower() not in SUFFIXES]
    others += [file for root in {path, *roots.values()} for file in _files(root)]
    if path not in roots.values():
        others += [folder for folder in _folders(path) if folder not in roots.values()]
    if not others:
        return []
    return [texts.LEFT_OUT(count=len(others), first=others[0])]


def _list(root: Path, classes) -> list[tuple[Path, int]]:
    """Return (file, label) of each image. Raises: DataError for a class without images, or one that training lacks."""
    listed = []
    for folder in _folders(root):
        if folder.name not in classes:
            raise DataError(texts.UNKNOWN_CLASS(folder=folder, hint=nearest(folder.name, classes)))
        images = _images(folder)
        if not images:
            raise DataError(texts.NO_IMAGES(folder=folder, suffixes=", ".join(sorted(SUFFIXES))))
        listed += [(file, classes.index(folder.name)) for file in images]
    return listed


# ── images ──────────────────────────────────────────────────────────────────────────────────────────────────
def _pillow():
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(texts.NO_PILLOW) from error
    return Image


def _open(file: Path):
    """Open an image and read its header, not its pixels."""
    image_module = _pillow()
    with decoding(texts.NO_IMAGE(file=file)):
        image = image_module.open(file, formats=FORMATS)
    if image.mode not in GREY | COLOUR:
        image.close()
        raise DataError(texts.PIXEL_TYPE(file=file, mode=image.mode))
    return image


def _survey(files, size) -> tuple[tuple[int, int, int], list[str]]:
    """Return the shape [H, W, C] of all examples, from the headers alone, and notes about them."""
    sizes: dict[tuple[int, int], Path] = {}
    grey = 0
    for file in files:
        with _open(file) as image:
            sizes.setdefault(image.size, file)
            grey += image.mode in GREY
    if len(sizes) > 1 and size is None:
        (one, first), (two, second) = list(sizes.items())[:2]
        raise DataError(
            texts.SIZES_DIFFER(
                first=first, first_size=f"{one[1]}x{one[0]}", second=second, second_size=f"{two[1]}x{two[0]}"
            )
        )
    height, width = size or next(iter(sizes))[::-1]
    colour = grey < len(files)
    notes = [texts.GREY_AMONG_COLOUR(grey=grey, count=len(files))] if colour and grey else []
    resized = [found for found in sizes if found != (width, height)]
    if resized:
        notes.append(texts.RESIZED(height=height, width=width))
    return (height, width, 3 if colour else 1), notes


def _load(listed, shape, progress: Progress) -> Part:
    with decoding(texts.IMAGES(count=len(listed), shape="x".join(map(str, shape)))):
        images = np.empty((len(listed), *shape), np.uint8)
    for row, (file, _) in enumerate(listed):
        images[row] = _pixels(file, shape)
        progress("reading", row + 1, len(listed))
    return Part(images, np.array([label for _, label in listed], np.int32))


def _pixels(file: Path, shape):
    """Read the pixels of an image. Shapes: → uint8 [H, W, C]"""
    height, width, channels = shape
    image_module = _pillow()
    with _open(file) as image, decoding(texts.NO_IMAGE(file=file)):
        image = image.convert("RGB" if channels == 3 else "L")
        if image.size != (width, height):
            image = image.resize((width, height), image_module.Resampling.BILINEAR)
        return np.asarray(image, np.uint8).reshape(shape)
