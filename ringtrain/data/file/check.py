"""Checks of a data set's file that list every problem: `ringtrain data check`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import Checksum, Progress, no_progress
from ringtrain.data.file.contents import checksum_problems, label_problems, read_images
from ringtrain.data.file.dataset import (
    DIGITS,
    DataSet,
    hdf5_errors,
    open_hdf5,
)
from ringtrain.data.file.layout import layout_problems
from ringtrain.data.file.metadata import DatasetMetadata, read_metadata, seal_problems, statistic_problems
from ringtrain.data.split import Split
from ringtrain.errors import DataError
from ringtrain.storage.hdf5 import is_own


def check_file(path, progress: Progress = no_progress) -> list[str]:
    """Return every problem of a file, none for a good one. Reads all of it, one split at a time, whatever its size."""
    path = DIGITS if str(path) == "digits" else Path(path)
    problems: list[str] = []
    try:
        with open_hdf5(path) as file, hdf5_errors(path):
            problems += layout_problems(file)
            # Contents are checked only if the layout is valid.
            if not problems:
                problems += _content_problems(path, file, progress)
    except DataError as error:
        problems.append(str(error))
    return problems


def _content_problems(path: Path, file, progress: Progress) -> Iterator[str]:
    metadata = read_metadata(file)
    yield from seal_problems(file, metadata)
    for name in ("train", "test"):
        if is_own(file, name):
            try:
                yield from _split_problems(file, name, metadata, progress)
            except (OSError, MemoryError) as error:
                yield texts.PART_UNREADABLE(name=name, reason=error or texts.OUT_OF_MEMORY)


def _split_problems(file, name: str, metadata: DatasetMetadata, progress: Progress) -> Iterator[str]:
    group = file[name]
    labels = group["labels"][...]
    yield from label_problems(name, labels, len(metadata.classes))
    images = np.empty(group["images"].shape, np.uint8)
    running = Checksum(images.shape)
    read_images(group["images"], images, progress, running)
    yield from checksum_problems(name, group.attrs["checksum"], running.finish(labels))
    if name == "train":
        yield from statistic_problems(metadata, images, progress)


MOST_CLASSES = 20  # shown one by one


def dataset_rows(data: DataSet) -> list[tuple[str, str]]:
    """Return (label, value) rows about the whole set."""
    return [
        ("name", data.name),
        ("classes", str(len(data.classes))),
        ("mean", _numbers(data.mean)),
        ("std", _numbers(data.std)),
        ("source", data.source),
        ("licence", data.licence),
    ]


def _numbers(values) -> str:
    return "  ".join(f"{value:.4f}" for value in values)


def split_rows(data: DataSet) -> list[tuple[str, ...]]:
    """Return (split, examples, image, MB, without label, checksum) of each split."""
    return [
        (
            name,
            f"{split.count:,}",
            "x".join(map(str, split.shape)),
            f"{split.images.nbytes / 1e6:.1f}",
            f"{int((split.labels < 0).sum()):,}",
            split.checksum,
        )
        for name, split in data.splits()
    ]


def class_rows(data: DataSet) -> list[tuple[str, ...]]:
    """Return (number, class, examples in each split …): the first classes if there are many, and one row for the
    others."""
    counts = [_histogram(split, len(data.classes)) for _, split in data.splits()]
    rows = [
        (str(number), name, *(f"{count[number]:,}" for count in counts))
        for number, name in enumerate(data.classes[:MOST_CLASSES])
    ]
    others = len(data.classes) - MOST_CLASSES
    if others > 0:
        ranges = (f"{count[MOST_CLASSES:].min():,} … {count[MOST_CLASSES:].max():,} each" for count in counts)
        rows.append(("…", f"and {others} more", *ranges))
    return rows


def _histogram(split: Split, classes: int):
    return np.bincount(split.labels[split.labels >= 0], minlength=classes)
