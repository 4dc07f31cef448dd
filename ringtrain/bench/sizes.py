"""Which sizes a sweep visits."""

import math
import re

from ringtrain.errors import UsageError
from ringtrain.exchange.buckets import make_buckets

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGEST = 1 << 40
MOST_SIZES = 1000


def parse_bytes(text: str) -> int:
    """ "64K", "1.5MiB" or "4096", as nccl-tests and people write them. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"{text!r} is not a size in bytes: write it as 4096, 64K, 1.5M or 2G (of 1024)")
    nbytes = float(match[1]) * UNITS[match[2].upper()]
    if nbytes > LARGEST:
        raise UsageError(f"a buffer of {text} is more than this can address: at most {LARGEST >> 30}G")
    return int(nbytes)


def swept(first: int, last: int, factor: float) -> list[int]:
    """From ``first`` to ``last`` bytes, each ``factor`` times the one before. Raises UsageError."""
    if first > last:
        raise UsageError(f"the sweep begins at {first:,} bytes and ends at {last:,}: -b must not be more than -e")
    if not 1 < factor < math.inf:
        raise UsageError(f"-f {factor:g}: each size is that many times the one before, so it must be more than 1")
    if first < 1:
        raise UsageError("the sweep begins at 0 bytes, which no factor makes larger: -b must be at least 1")
    count = math.log(last / first) / math.log(factor)
    if count > MOST_SIZES:
        raise UsageError(f"-f {factor:.12g} makes {count:,.0f} sizes, and {MOST_SIZES:,} are many: make it larger")
    sizes, size = [], float(first)
    while size <= last:
        sizes.append(int(size))
        size *= factor
    return sizes


def of_buckets(spans, itemsize: int, bucket_bytes: int) -> list[int]:
    """The sizes of the buckets in which training exchanges these spans, each once."""
    return sorted({(b.stop - b.start) * itemsize for b in make_buckets(spans, itemsize, bucket_bytes)})


def whole_elements(sizes: list[int], itemsize: int) -> list[int]:
    """Cut to whole elements, at least one; each once."""
    return sorted({max(size // itemsize, 1) * itemsize for size in sizes})
