"""Opens folders of images and tar shards as a data set: their names and sizes are read, not their images.

Mean and standard deviation of the channels are computed of a sample: of up to SAMPLE training images, drawn by key, as
evaluations see them. Their sums are of integers: the same, however many ranks divide them.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ringtrain.data.batches import keys
from ringtrain.data.batches.pictures import View
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.file.statistics import IntegerSums, PixelStatistics, statistics_of_sums
from ringtrain.data.image_files.index import Divide, Index, Tables, alone, parted, tables_of
from ringtrain.data.image_files.shards import are_shards, scan_shard, shards_of
from ringtrain.data.image_files.split import ImageFilesSplit
from ringtrain.data.readers import folder
from ringtrain.data.stored.flat import OpenFiles
from ringtrain.errors import DataError, plain

SAMPLE, AT_A_TIME = 1024, 32  # images of the sample; of a rank's turn
CLASSES_FILE = "classes.txt"
TRAINING = "the training part"


def accepts(path: str) -> bool:
    """Return whether a path or pattern is of tar shards, or of a folder of images."""
    return path != "digits" and (are_shards(path) or folder.accepts(Path(path)))


def open_images(
    path: str, view: View, channels: int, threads: int = 1, divide: Divide = alone, skip: bool = False
) -> DataSet:
    """Open a folder of images (:mod:`ringtrain.data.readers.folder` has its grammar) or tar shards (:mod:`.shards`).

    view:     of all images in evaluations, and in training without a transform
    channels: 1, grey, or 3, RGB
    threads:  that decode a batch
    divide:   divides scans and the sample among ranks
    skip:     whether bad images, and broken links to images, do not end the command: see ``problems`` of the parts
    Raises: DataError
    """
    splits, classes = open_parts(path, view, channels, threads, divide, skip)
    try:
        statistics = _statistics(splits["train"], divide)
    except BaseException:
        for split in splits.values():
            split.close()
        raise
    shards = are_shards(path)
    return DataSet(
        name=plain(Path(path).name if shards else Path(path).resolve().name),
        train=splits["train"],
        test=splits.get("test"),
        classes=tuple(map(plain, classes)),
        mean=statistics.mean,
        std=statistics.std,
        mean_image=statistics.mean_image,
        source=plain(f"tar shards {path}" if shards else f"folder of images {path}"),
        location="files",
        notes=splits["train"].notes,
    )


def open_parts(
    path: str, view: View, channels: int, threads: int, divide: Divide, skip: bool, classes: Sequence[str] = ()
) -> tuple[dict[str, ImageFilesSplit], Sequence[str]]:
    """Return (the parts by name, the names of classes), without statistics. ``classes``: of the data set that it is to
    test, whose numbers its labels become; its "train" is that part. Otherwise as :func:`open_images`."""
    shards = are_shards(path)
    indices, classes, notes = _of_shards(path, divide, classes) if shards else _of_folders(path, divide, classes, skip)
    splits = {}
    for name, index in indices.items():
        files = OpenFiles(index.containers) if shards else None
        splits[name] = ImageFilesSplit(index=index, channels=channels, view=view, threads=threads, shards=files)
        splits[name].problems = {} if skip else None
    splits["train"].notes = notes
    return splits, classes


# ── folders ─────────────────────────────────────────────────────────────────────────────────────────────────
Opened = tuple[dict[str, Index], Sequence[str], tuple[str, ...]]  # parts, classes, notes


def _notes(tables: Sequence[Tables], beside: Sequence[str] = ()) -> tuple[str, ...]:
    first = [*beside, *(name for table in tables for name in parted(table["first left out"]))]
    return tuple(folder.left_out(first, len(beside) + sum(int(table["left_out"][0]) for table in tables)))


def _of_folders(path: str, divide: Divide, class_names: Sequence[str], broken: bool) -> Opened:
    roots = folder.parts_of(Path(path))
    classes, folders = folder.labelled_folders(roots, class_names)
    tables = divide(len(folders), lambda number: _scan_folder(*folders[number][1:], broken))
    indices = {}
    for name in roots:
        of_part = [(str(entry), table) for (part, entry, _), table in zip(folders, tables, strict=True) if part == name]
        indices[name] = Index.join(*zip(*of_part, strict=True))
    return indices, classes, _notes(tables, folder.beside(Path(path), roots))


def _scan_folder(entry: Path, label: int, broken: bool) -> Tables:
    files, others = folder.images_of(entry, broken)
    sizes = [os.stat(file).st_size if os.path.exists(file) else 0 for file in files]
    names = [os.path.relpath(file, entry) for file in files]
    return tables_of(names, [0] * len(files), sizes, [label] * len(files), left_out=others)


# ── shards ──────────────────────────────────────────────────────────────────────────────────────────────────
def _of_shards(pattern: str, divide: Divide, class_names: Sequence[str]) -> Opened:
    paths = shards_of(pattern)
    tables = divide(len(paths), lambda number: scan_shard(paths[number]))
    folders = [parted(table["folders"]) for table in tables]
    named = [bool(names) for names in folders]
    if any(named) and not all(named):
        raise DataError(
            f"{paths[named.index(True)]} has classes as folders, but {paths[named.index(False)]} has labels as "
            "numbers: make all shards alike"
        )
    source = TRAINING if class_names else CLASSES_FILE
    class_names = class_names or _listed_classes(Path(paths[0]).parent / CLASSES_FILE)
    if not all(named):
        return {"train": Index.join(paths, tables)}, _numbered(tables, paths, class_names, source), _notes(tables)
    classes = class_names or sorted({name for names in folders for name in names})
    numbers = {name: number for number, name in enumerate(classes)}
    for path, names in zip(paths, folders, strict=True):
        for name in names:
            if name not in numbers:
                raise DataError(f"{path} has the class {plain(name)!r}, which {source} does not have: add it there")
    for table, names in zip(tables, folders, strict=True):  # labels of all classes in place of a shard's folders
        table["spans"][2] = np.array([numbers[name] for name in names], np.int64)[table["spans"][2]]
    return {"train": Index.join(paths, tables)}, classes, _notes(tables)


def _listed_classes(file: Path) -> list[str]:
    """The names in a file, one a line, in the order of their numbers; none without the file."""
    try:
        names = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    except (OSError, ValueError) as error:
        raise DataError(f"{file} could not be read as the names of classes: {error}") from error
    names = [name.strip() for name in names if name.strip()]
    if len(set(names)) < len(names):
        raise DataError(
            f"{file} has the class {next(name for name in names if names.count(name) > 1)!r} twice: keep one"
        )
    return names


def _numbered(tables: list[Tables], paths: list[str], class_names: Sequence[str], source: str) -> Sequence[str]:
    highest = [int(table["spans"][2].max()) for table in tables]
    if not class_names:
        return [str(number) for number in range(max(highest) + 1)]
    for path, label in zip(paths, highest, strict=True):
        if label >= len(class_names):
            raise DataError(
                f"{path} has the label {label}, but {source} has {len(class_names)} classes: add the others there"
            )
    return class_names


# ── statistics ──────────────────────────────────────────────────────────────────────────────────────────────
def _statistics(split: ImageFilesSplit, divide: Divide) -> PixelStatistics:
    sample = np.sort(keys.permutation(keys.make_key(keys.SAMPLE), split.count)[:SAMPLE])
    turns = [sample[start : start + AT_A_TIME].tolist() for start in range(0, sample.size, AT_A_TIME)]

    def sums(turn: int) -> Tables:
        running, image = IntegerSums(split.shape), np.empty((1, *split.shape), split.dtype)
        for example in turns[turn]:
            split.use(example, partial(split.view_into, out=image[0]))
            running.add(image)
        return {"pixels": running.pixels, "squares": running.squares}

    results = divide(len(turns), sums)
    pixels, squares = (sum(each[name] for each in results) for name in ("pixels", "squares"))
    return statistics_of_sums(pixels, squares, int(sample.size))
