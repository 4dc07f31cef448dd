"""Check of the HDF5 heaps that keep texts of free length, before the library opens the file: a damaged length sends the
library's C code into an endless loop that no signal interrupts.

A global heap collection is
    "GCOL" 1 0 0 0, its size (8 bytes), then objects:
    index (2), references (2), 0 (4), size (8), content to a multiple of 8
    index 0 is the free space to the end; its size includes these 16 bytes; a rest below 16 bytes has no header

Source: HDF5 File Format Specification, version 3, section III.E
"""

import mmap
import struct
from pathlib import Path

SIGNATURE = b"GCOL\1\0\0\0"  # no image has all eight bytes by chance, at a multiple of 8
HEAD = 16
SEARCHED_BYTES = 64 << 20  # at either end: HDF5 puts arrays in the middle


def heap_problem(path: Path) -> str | None:
    """Describe a problem with a heap of the file; None if all are good. Raises OSError."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            ends = ((0, SEARCHED_BYTES), (max(SEARCHED_BYTES, len(data) - SEARCHED_BYTES), len(data)))
            found = (place for start, stop in ends for place in _places(data, start, stop))
            return next(
                (f"the texts at byte {place} are damaged" for place in found if not _is_whole(data, place)), None
            )


def _places(data, start: int, stop: int):
    place = data.find(SIGNATURE, start, stop)
    while place >= 0:
        if place % 8 == 0:
            yield place
        place = data.find(SIGNATURE, place + 1, stop)


def _is_whole(data, start: int) -> bool:
    """Return whether the objects fill the collection without a gap."""
    size = int.from_bytes(data[start + 8 : start + HEAD], "little")
    if start + max(HEAD, size) > len(data):
        return True  # cut short: HDF5 reports it
    place = HEAD
    while place + HEAD <= size:
        index, length = struct.unpack_from("<H6xQ", data, start + place)
        step = length if index == 0 else HEAD + -(-length // 8) * 8
        if step < HEAD or place + step > size:
            return False
        place += step
    return True
