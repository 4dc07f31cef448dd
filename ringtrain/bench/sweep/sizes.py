"""The sizes of a sweep."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from ringtrain.bench import texts
from ringtrain.errors import UsageError, nearest
from ringtrain.nn.buckets import make_buckets

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGEST = 1 << 40
MOST_SIZES = 1000


def parse_bytes(text: str) -> int:
    """Return the bytes of "64K", "1.5MiB" or "4096", as nccl-tests and people write them. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(texts.NO_SIZE(size=text))
    nbytes = float(match[1]) * UNITS[match[2].upper()]
    if nbytes > LARGEST:
        raise UsageError(texts.TOO_LARGE(size=text, most=LARGEST >> 30))
    return int(nbytes)


def swept(first: int, last: int, factor: float) -> list[int]:
    """Return sizes from ``first`` to ``last`` bytes, each ``factor`` times the one before. Raises UsageError."""
    if first > last:
        raise UsageError(texts.BEGINS_AFTER_END(first=first, last=last))
    if not 1 < factor < math.inf:
        raise UsageError(texts.FACTOR_TOO_SMALL(factor=factor))
    if first < 1:
        raise UsageError(texts.BEGINS_AT_ZERO)
    count = math.log(last / first) / math.log(factor)
    if count > MOST_SIZES:
        raise UsageError(texts.TOO_MANY_SIZES(factor=factor, count=count, most=MOST_SIZES))
    sizes, size = [], float(first)
    while size <= last:
        sizes.append(int(size))
        size *= factor
    return sizes


def of_buckets(spans, itemsize: int, bucket_bytes: int) -> list[int]:
    """Return the sizes of the buckets in which training exchanges these spans, each once."""
    return sorted({(b.stop - b.start) * itemsize for b in make_buckets(spans, itemsize, bucket_bytes)})


def whole_elements(sizes: Sequence[int], itemsize: int) -> list[int]:
    """Return the sizes cut to whole elements, at least one; each once."""
    return sorted({max(size // itemsize, 1) * itemsize for size in sizes})


CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


UNKNOWN_BYTES = 64 << 20  # more than the last-level cache of most processors


def scrub_bytes(folder: Path = CACHES) -> int:
    """Return twice the largest cache that the system reports."""
    sizes = [parse_bytes(file.read_text()) for file in folder.glob("index*/size")]
    return 2 * max(sizes, default=UNKNOWN_BYTES // 2)


def parse_names(names: str, known, what: str) -> list[str]:
    """Return the names of a list like "ring,mpi", or every known one for "all". Raises UsageError for another name."""
    chosen = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in known:
            raise UsageError(texts.UNKNOWN_NAME(what=what, name=name, hint=nearest(name, known)))
    return list(dict.fromkeys(chosen))
