"""The sizes of a sweep."""

import math
from collections.abc import Sequence
from pathlib import Path

from ringtrain import parsing
from ringtrain.errors import UsageError, nearest
from ringtrain.memory.buckets import make_buckets

MOST_SIZES = 1000


def swept(first: int, last: int, factor: float) -> list[int]:
    """Return sizes from ``first`` to ``last`` bytes, each ``factor`` times the one before. Raises UsageError."""
    if first > last:
        raise UsageError(f"the sweep begins at {first:,} bytes and ends at {last:,}: -b must not exceed -e")
    if not 1 < factor < math.inf:
        raise UsageError(f"-f {factor:g}: each size is the one before times this factor, so it must be above 1")
    if first < 1:
        raise UsageError("the sweep begins at 0 bytes, so no factor makes it larger: -b must be at least 1")
    count = math.log(last / first) / math.log(factor)
    if count > MOST_SIZES:
        raise UsageError(
            f"-f {factor:.12g} makes {count:,.0f} sizes, but at most {MOST_SIZES:,} are allowed: make it larger"
        )
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
    sizes = [parsing.size(file.read_text()) for file in folder.glob("index*/size")]
    return 2 * max(sizes, default=UNKNOWN_BYTES // 2)


def parse_names(names: str, known, what: str) -> list[str]:
    """Return the names of a list like "ring,mpi", or every known one for "all". Raises UsageError for another name."""
    chosen = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in known:
            raise UsageError(f"unknown {what} {name!r}: {nearest(name, known)}, or all")
    return list(dict.fromkeys(chosen))
