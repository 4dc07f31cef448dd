"""Checks of a data set's file, which list each bad part: `ringtrain data check`; what `ringtrain data info` shows."""

from collections.abc import Iterator

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import MOST_CLASSES, Part, Progress, no_progress
from ringtrain.data.file.contents import checksum_problems, part_label_problems, read_part, verify_parts
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.file.grammar import AS_STORED, Layout
from ringtrain.data.file.source import OpenSource, open_source
from ringtrain.data.file.statistics import running_statistics
from ringtrain.data.split import Split
from ringtrain.errors import DataError


def check_file(path, progress: Progress = no_progress, layout: Layout = AS_STORED) -> list[str]:
    """Return the problems of a data set, named as for ``--data``: all of its examples, or the first for which it does
    not open; none for a good one. Reads all of it, a block at a time."""
    try:
        source = open_source(path, layout=layout)
        source.verify()
        verify_parts(source.joined, progress)
    except DataError as error:
        return [str(error)]
    return list(_content_problems(source, progress))


def _content_problems(source: OpenSource, progress: Progress) -> Iterator[str]:
    for name, part in source.parts.items():
        try:
            yield from _part_problems(source, name, part, progress)
        except DataError as error:
            yield str(error)
        except (OSError, MemoryError) as error:
            yield f"{name} could not be read: {error or texts.OUT_OF_MEMORY}"


def _part_problems(source: OpenSource, name: str, part: Part, progress: Progress) -> Iterator[str]:
    statistics = running_statistics(part.inputs)
    digest = read_part(part, progress, takers=[statistics])
    yield from part_label_problems(name, part, MOST_CLASSES if source.classes is None else len(source.classes))
    if part.checksum is not None:
        yield from checksum_problems(name, part.checksum, digest)
    statistics.finish()  # which refuses values that are not finite


MOST_SHOWN, MOST_NUMBERS = 20, 8  # shown one by one


def dataset_rows(data: DataSet) -> list[tuple[str, str]]:
    """Return (label, value) rows about the whole set."""
    moments = data.label_moments
    return [
        ("name", data.name),
        *([("classes", str(len(data.classes)))] if moments is None else _target_rows(data, *moments)),
        ("mean", _numbers(data.mean)),
        ("std", _numbers(data.std)),
        ("source", data.source),
    ]


def _target_rows(data: DataSet, mean: np.ndarray, std: np.ndarray) -> list[tuple[str, str]]:
    """The form of labels that are values, and their mean and standard deviation along the last axis."""
    form = f"{'x'.join(map(str, data.train.label_shape)) or 1} {data.train.label_dtype}"
    return [("targets", form), ("  mean", _numbers(mean)), ("  std", _numbers(std))]


def _numbers(values) -> str:
    more = f"  … {len(values)} in all" if len(values) > MOST_NUMBERS else ""
    return "  ".join(f"{value:.4f}" for value in values[:MOST_NUMBERS]) + more


def split_rows(data: DataSet) -> list[tuple[str, ...]]:
    """Return (split, examples, shape, MB, without label, checksum) of each split."""
    return [
        (
            name,
            f"{split.count:,}",
            _form(data, split),
            f"{split.count * split.row_bytes / 1e6:.1f}",
            f"{int((split.labels < 0).sum()):,}" if split.has_classes else "-",
            split.checksum,
        )
        for name, split in data.splits()
    ]


def _form(data: DataSet, split: Split) -> str:
    if data.location == "files":
        return "files"
    return "x".join(map(str, split.shape)) + ("" if split.dtype == np.uint8 else f" {split.dtype}")


def class_rows(data: DataSet) -> list[tuple[str, ...]]:
    """Return (number, class, examples in each split …): the first classes if there are many, and one row for the
    others; no row if labels are not one class number."""
    if not data.train.has_classes:
        return []
    labels = [split.labels for _, split in data.splits() if split.labels is not None]  # all are in memory
    counts = [np.bincount(each[each >= 0], minlength=len(data.classes)) for each in labels]
    rows = [
        (str(number), name, *(f"{count[number]:,}" for count in counts))
        for number, name in enumerate(data.classes[:MOST_SHOWN])
    ]
    others = len(data.classes) - MOST_SHOWN
    if others > 0:
        ranges = (f"{count[MOST_SHOWN:].min():,} … {count[MOST_SHOWN:].max():,} each" for count in counts)
        rows.append(("…", f"and {others} more", *ranges))
    return rows
