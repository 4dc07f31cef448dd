"""Inputs without a data set: image files, folders of them, and arrays of .npy and .npz files.

Images of any size are fitted to the training images. Arrays are examples as they are: uint8 or numbers of
any type, [N, H, W, C], also without C where it is 1, or one example alone.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.batches.pictures import PictureSplit, View
from ringtrain.data.content import IGNORE
from ringtrain.data.decoding import decoding
from ringtrain.data.images import Box, FilePicture, Picture
from ringtrain.data.readers.image_walk import OTHER, SUFFIXES, walk
from ringtrain.data.split import ArraySplit, Shape
from ringtrain.data.stored.base import NUMBERS
from ringtrain.errors import DataError, plain
from ringtrain.storage import files

IMAGES, ARRAY, DATA_SET = "images", "array", "data set"
ARRAY_ENDINGS = (".npy", ".npz")
LABEL_NAMES = {"x_test": "y_test", "test_images": "test_labels", "x": "y", "images": "labels", "x_train": "y_train"}
ARRAY_NAMES = tuple(LABEL_NAMES)  # in an archive of several arrays, the first of these


# ── which they are ────────────────────────────────────────────────────────────────────────────────────────────
def list_inputs(named: Sequence[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Sort inputs into (kind, paths), in their order: neighbouring images are one entry. A folder stands for all images
    in it and its folders, in the order of their names; what is neither image nor array is a data set. Then notes, on
    what in folders is no image.

    Raises: DataError for a file that is missing, and for a folder without images.
    """
    listed: list[tuple[str, list[str]]] = []
    others: list[str] = []
    for path in named:
        kind, paths = _look(path, others)
        if kind == IMAGES and listed and listed[-1][0] == IMAGES:
            listed[-1][1].extend(paths)
        else:
            listed.append((kind, paths))
    if not others:
        return listed, []
    return listed, [f"{len(others)} files or folders are no images and were left out: {plain(others[0])}, …"]


def _look(path: str, others: list[str]) -> tuple[str, list[str]]:
    ending = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        entries = list(walk(path))
        images = [each for each, kind in entries if kind != OTHER]
        if not images:
            raise DataError(f"{path} and the folders in it have no images (of {', '.join(sorted(SUFFIXES))})")
        others += [each for each, kind in entries if kind == OTHER]
        return IMAGES, images
    for kind, endings in ((IMAGES, SUFFIXES), (ARRAY, ARRAY_ENDINGS)):
        if ending in endings and not os.path.exists(path):
            raise DataError(
                f"there is no {path}: give image files, folders of them, .npy or .npz files, or data sets (.h5)"
            )
        if ending in endings:
            return kind, [path]
    return DATA_SET, [path]


# ── their examples ────────────────────────────────────────────────────────────────────────────────────────────
class ImageFiles(PictureSplit):
    """Files of images without labels, decoded when they are read.

    shape: (H, W, C) of the training images, whose size files get
    view:  of the training images; None: they are of one size, and a file is cropped to their proportions
    """

    dtype = np.dtype(np.uint8)
    checksum = ""

    def __init__(self, files: Sequence[str], shape: Shape, view: View | None = None, threads: int = 1):
        self.files, self.shape, self.view, self.threads = files, shape, view, threads
        self.count = len(files)
        self.labels = np.full(self.count, IGNORE, np.int32)
        self.problems = {}

    def view_into(self, picture: Picture, out: np.ndarray) -> None:
        if self.view is not None:
            self.view.into(picture, out)
        else:
            picture.cut(centre_of(picture.height, picture.width, *self.shape[:2]), out)

    def picture(self, example: int) -> Picture:
        """Return an image, whose header is read. Raises: DataError that names the file"""
        where = self.files[example]
        return FilePicture(_content(where), where, self.shape[2])


def centre_of(rows: int, columns: int, height: int, width: int) -> Box:
    """Return the largest part at the centre of an image that has these proportions."""
    tall, wide = max(1, round(columns * height / width)), max(1, round(rows * width / height))
    tall, wide = min(rows, tall), min(columns, wide)
    return (rows - tall) // 2, (columns - wide) // 2, tall, wide


def _content(path: str) -> bytes:
    try:
        with os.fdopen(files.open_regular(Path(path), os.O_RDONLY), "rb") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"{path} could not be read: {error.strerror or error}") from None


def read_array(path: str, shape: Shape, channels_first: bool = False) -> ArraySplit:
    """Open the examples of a .npy file (mapped, not read) or a .npz archive (read), with their labels where the archive
    has class numbers or values. ``shape``: of a training example; ``channels_first``: whether the array's channels are.

    Raises: DataError if the file is damaged or its array is not of such inputs.
    """
    with decoding(texts.NOT_READ_FILE.format(path=path)):
        if path.lower().endswith(".npy"):
            return unlabelled(np.load(path, mmap_mode="r", allow_pickle=False), shape, path, channels_first)
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            name = _array_name(path, archive)
            split = unlabelled(archive[name], shape, f"{path}: {name}", channels_first)
            labels = LABEL_NAMES.get(name)
            return _labelled(split, archive[labels] if labels in archive.files else None)


def _array_name(path: str, archive) -> str:
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise DataError(texts.NPZ_NO_ARCHIVE.format(path=path))
    names = archive.files if len(archive.files) == 1 else ARRAY_NAMES
    for name in names:
        if name in archive.files:
            return name
    raise DataError(
        f"{path} has several arrays ({', '.join(archive.files) or 'none'}): name the one with the examples "
        f"{', '.join(ARRAY_NAMES)}"
    )


def _labelled(split: ArraySplit, labels: np.ndarray | None) -> ArraySplit:
    if labels is not None and labels.dtype.kind == "f" and labels.shape[:1] == (split.count,):
        return ArraySplit(split.images, labels.astype(np.float32), "")
    if labels is None or labels.dtype.kind not in "iu" or labels.reshape(-1).shape != (split.count,):
        return split
    return ArraySplit(split.images, labels.reshape(-1).astype(np.int32), "")


def unlabelled(array, shape: Shape, where: str, channels_first: bool = False) -> ArraySplit:
    """Return the examples of an array, which may lack the axis of examples, or the axis of a single channel.
    ``shape``: of a training example.

    Raises: DataError naming ``where``, if the array has no such axes, no examples, or no numbers.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in NUMBERS:
        raise DataError(
            f"{where}: its values are {getattr(array, 'dtype', type(array).__name__)}: give uint8, or other numbers"
        )
    array = array.view(np.uint8) if array.dtype.kind == "b" else array
    axis = array.ndim - len(shape)
    if channels_first and axis in (0, 1) and array.shape[axis] == shape[-1]:
        array = np.ascontiguousarray(np.moveaxis(array, axis, -1))
    examples = array[..., None] if _lacks_channels(array, shape) else array
    examples = examples[None] if is_one(array, shape) else examples
    if examples.ndim != len(shape) + 1 or 0 in examples.shape:
        raise DataError(
            f"{where} has the shape {array.shape}: the training data has [N, {', '.join(map(str, shape))}]; N from 1"
        )
    return ArraySplit(examples, np.full(len(examples), IGNORE, np.int32), "")


def is_one(array: np.ndarray, shape: Shape) -> bool:
    """Return whether an array is one example, without an axis of examples. ``shape``: of a training example"""
    return array.ndim + _lacks_channels(array, shape) == len(shape)


def _lacks_channels(array: np.ndarray, shape: Shape) -> bool:
    """Whether the axis of one channel is absent. Images may have another height and width than those of training."""
    if shape[-1] != 1 or array.shape[-1:] == (1,):
        return False
    return len(shape) == 3 or (len(shape) > 1 and array.shape[1 - len(shape) :] == shape[:-1])
