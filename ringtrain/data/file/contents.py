"""The examples of a data set's file: their places in memory, their reading, and their problems."""

from collections.abc import Iterator

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import IGNORE, Checksum, Progress, no_progress, row_blocks
from ringtrain.data.file.metadata import DatasetMetadata, is_sealed, statistic_problems

VERIFY_BYTES = 256 << 20
HEADER_BYTES = 4096
ALIGN = 64


def places_of(file, names: list[str]) -> tuple[dict[tuple[str, str], tuple[int, int]], int]:
    """Return the place of each array in the window, {(split, key): (start, stop)} in bytes, and the window's size."""
    places: dict[tuple[str, str], tuple[int, int]] = {}
    end = HEADER_BYTES
    for name in names:
        for key in ("images", "labels"):
            start = -(-end // ALIGN) * ALIGN
            end = start + file[name][key].size * file[name][key].dtype.itemsize
            places[name, key] = (start, end)
    return places, end


def arrays_of(file, names: list[str], memory: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
    """Return the arrays in the window, by split and key."""
    places, _ = places_of(file, names)
    return {
        (name, key): memory[start:stop].view(file[name][key].dtype).reshape(file[name][key].shape)
        for (name, key), (start, stop) in places.items()
    }


def content_problems(
    file, names: list[str], memory: np.ndarray, metadata: DatasetMetadata, progress: Progress
) -> Iterator[str]:
    """Read every array into ``memory``, and yield each problem of labels, checksums and statistics."""
    arrays = arrays_of(file, names, memory)
    verify = sum(array.nbytes for array in arrays.values()) <= VERIFY_BYTES
    for name in names:
        images, labels = arrays[name, "images"], arrays[name, "labels"]
        file[name]["labels"].read_direct(labels)
        yield from label_problems(name, labels, len(metadata.classes))
        running = Checksum(images.shape) if verify else None
        read_images(file[name]["images"], images, progress, running)
        if running is not None:
            yield from checksum_problems(name, file[name].attrs["checksum"], running.finish(labels))
    if verify and not is_sealed(file):
        yield from statistic_problems(metadata, arrays["train", "images"], progress)


def read_images(array, out: np.ndarray, progress: Progress = no_progress, running: Checksum | None = None) -> None:
    """Read a dataset into ``out``, a block at a time, and add it to a ``running`` checksum."""
    for rows in row_blocks(array.shape[0], out[0].nbytes, array.chunks[0] if array.chunks else 1):
        array.read_direct(out, rows, rows)
        if running is not None:
            running.add(out[rows])
        progress("reading", rows.stop, array.shape[0])


def label_problems(name: str, labels: np.ndarray, classes: int) -> Iterator[str]:
    """Yield a problem if labels are not class numbers."""
    wrong = np.flatnonzero((labels < IGNORE) | (labels >= classes))
    if wrong.size:
        yield texts.LABELS_OUT_OF_RANGE(
            wrong=wrong.size,
            count=labels.size,
            name=name,
            label=labels[wrong[0]],
            example=wrong[0],
            low=labels.min(),
            high=labels.max(),
            classes=classes,
            last=classes - 1,
        )


def checksum_problems(name: str, noted: str, found: str) -> Iterator[str]:
    """Yield a problem if the examples differ from the written ones."""
    if noted != found:
        yield texts.EXAMPLES_CHANGED(name=name, found=found[:12], noted=noted[:12])
