"""What there is to say about a data set: what `ringtrain data info` shows, as rows of text."""

import numpy as np

from ringtrain.data.dataset import DataSet, Split

MOST_CLASSES = 20  # shown one by one


def facts(data: DataSet) -> list[tuple[str, str]]:
    """(what, value) of the whole set."""
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
    """(split, examples, image, MB, without label, checksum) of each split."""
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
    """(number, class, examples in each split …); of many classes only the first, and one row for the
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
