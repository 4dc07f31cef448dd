"""What a data set's file holds beside its examples, and training uses: class names and statistics.

A file has a checksum of them, the attribute ``checksum`` of its root. One that was written without, by an earlier
ringtrain or by another program, is held to the statistics of its training images: those are looked at when it is opened
where the set is small enough to be verified, and else by `ringtrain data check`; its class names are taken as they are.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import Progress, no_progress
from ringtrain.data.file.statistics import pixel_statistics

TOLERANCE = 1e-4  # of the statistics, on the scale 0 … 255: a file may have been made by other arithmetic
STATISTICS = ("mean", "std", "mean_image")


@dataclass(frozen=True, slots=True)
class DatasetMetadata:
    """Shapes: mean, std float64 [C], mean_image float32 [H, W, C], of the training images, 0 … 255."""

    classes: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    mean_image: np.ndarray

    @property
    def checksum(self) -> str:
        return metadata_checksum(self.classes, self)


def metadata_checksum(classes: Sequence[str], statistics) -> str:
    """Return the sha256 of a line, the class names as a JSON list, and the statistics: mean and std as float64,
    mean_image as float32, little-endian, in C order."""
    running = hashlib.sha256(json.dumps(list(classes)).encode() + b"\n")
    for key, dtype in zip(STATISTICS, ("<f8", "<f8", "<f4"), strict=True):
        running.update(np.ascontiguousarray(getattr(statistics, key), dtype).data)
    return running.hexdigest()


def read_metadata(file) -> DatasetMetadata:
    """Of a file whose layout is good."""
    return DatasetMetadata(
        tuple(file.attrs["classes"]),
        np.asarray(file.attrs["mean"], np.float64),
        np.asarray(file.attrs["std"], np.float64),
        file["mean_image"][...],
    )


def is_sealed(file) -> bool:
    return "checksum" in file.attrs


def seal_problems(file, metadata: DatasetMetadata) -> Iterator[str]:
    """A problem where they are not those that were written, as far as the file says."""
    if is_sealed(file) and file.attrs["checksum"] != metadata.checksum:
        yield (texts.FACTS_CHANGED(found=metadata.checksum[:12], noted=file.attrs["checksum"][:12]))


def statistic_problems(metadata: DatasetMetadata, images, progress: Progress = no_progress) -> Iterator[str]:
    """A problem for each that is not that of the training images, uint8 [N, H, W, C]."""
    found = pixel_statistics(images, progress)
    for key in STATISTICS:
        # Not "off > TOLERANCE": a NaN must not pass.
        off = np.abs(getattr(metadata, key) - getattr(found, key)).max()
        if not off <= TOLERANCE:
            yield texts.STATISTIC_OFF(key=key, off=off)
