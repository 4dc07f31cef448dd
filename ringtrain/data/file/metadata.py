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
from ringtrain.data.content import Progress, silent
from ringtrain.data.file.statistics import statistics

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
        return facts_checksum(self.classes, self)


def facts_checksum(classes: Sequence[str], told) -> str:
    """sha256 over a line, the class names as a list of JSON, and the statistics of ``told``: mean and std as float64,
    mean_image as float32, little-endian, in C order."""
    running = hashlib.sha256(json.dumps(list(classes)).encode() + b"\n")
    for key, dtype in zip(STATISTICS, ("<f8", "<f8", "<f4"), strict=True):
        running.update(np.ascontiguousarray(getattr(told, key), dtype).data)
    return running.hexdigest()


def read_facts(file) -> DatasetMetadata:
    """Of a file whose layout is good."""
    return DatasetMetadata(
        tuple(file.attrs["classes"]),
        np.asarray(file.attrs["mean"], np.float64),
        np.asarray(file.attrs["std"], np.float64),
        file["mean_image"][...],
    )


def is_sealed(file) -> bool:
    return "checksum" in file.attrs


def seal_problems(file, facts: DatasetMetadata) -> Iterator[str]:
    """A problem where they are not those that were written, as far as the file says."""
    if is_sealed(file) and file.attrs["checksum"] != facts.checksum:
        yield (texts.FACTS_CHANGED(found=facts.checksum[:12], noted=file.attrs["checksum"][:12]))


def statistic_problems(facts: DatasetMetadata, images, progress: Progress = silent) -> Iterator[str]:
    """A problem for each that is not that of the training images, uint8 [N, H, W, C]."""
    found = statistics(images, progress)
    for key in STATISTICS:
        # Not "off > TOLERANCE": a NaN must not pass.
        off = np.abs(getattr(facts, key) - getattr(found, key)).max()
        if not off <= TOLERANCE:
            yield texts.STATISTIC_OFF(key=key, off=off)
