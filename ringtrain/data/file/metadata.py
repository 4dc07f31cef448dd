"""The metadata of a data set: class names and statistics, beside the examples.

The attribute ``checksum`` of the file's root seals them. A file without it, from an earlier ringtrain or another
program, is compared with the statistics of its training images: at opening if the set is small enough to be verified,
else by `ringtrain data check`. Its class names are taken as they are.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np

from ringtrain.data.file.statistics import PixelStatistics

TOLERANCE = 1e-4  # of the statistics, on the scale 0 … 255: a file may have been made by other arithmetic
STATISTICS = ("mean", "std", "mean_image")


def metadata_checksum(classes: Sequence[str], statistics) -> str:
    """Return the sha256 of a line, the class names as a JSON list, and the statistics: mean and std as float64,
    mean_image as float32, little-endian, in C order."""
    running = hashlib.sha256(json.dumps(list(classes)).encode() + b"\n")
    for key, dtype in zip(STATISTICS, ("<f8", "<f8", "<f4"), strict=True):
        running.update(np.ascontiguousarray(getattr(statistics, key), dtype).data)
    return running.hexdigest()


def read_statistics(file) -> PixelStatistics:
    """Read the statistics of a file whose layout is good."""
    mean, std = (np.asarray(file.attrs[key], np.float64) for key in ("mean", "std"))
    return PixelStatistics(mean, std, file["mean_image"][...])


def is_sealed(file) -> bool:
    """Return whether the file has a checksum of its metadata."""
    return "checksum" in file.attrs


def seal_problems(file) -> Iterator[str]:
    """Yield a problem if the metadata differ from the file's checksum of them."""
    checksum = metadata_checksum(file.attrs["classes"], read_statistics(file))
    if is_sealed(file) and file.attrs["checksum"] != checksum:
        yield (
            "the class names, mean, std or mean_image changed after they were written: their checksum is "
            f"{checksum[:12]}…, the file says {file.attrs['checksum'][:12]}…; make the file with `ringtrain data make` "
            "or copy it again"
        )


def statistic_problems(noted: PixelStatistics, computed: PixelStatistics) -> Iterator[str]:
    """Yield a problem for each statistic that differs from the training inputs'."""
    for key in STATISTICS:
        # Not "off > TOLERANCE": a NaN must not pass.
        value, right = getattr(noted, key), getattr(computed, key)
        off = (np.abs(value - right) / np.maximum(1, np.abs(right) / 255)).max()
        if not off <= TOLERANCE:
            yield (
                f"{key} differs by up to {off:.3g} from that of the training images: make the file with `ringtrain "
                "data make` or copy it again"
            )
