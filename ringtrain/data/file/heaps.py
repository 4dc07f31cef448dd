"""Check of the HDF5 heaps that keep texts of free length, before the library opens the file: a damaged length sends the
library's C code into an endless loop that no signal interrupts.

HDF5 puts texts near the ends of a file and arrays between them, so the ends are searched for heaps. Of a longer file a
process with a limit reads the texts first (:mod:`ringtrain.data.file.read_texts`): it ends where this one would loop.

A global heap collection is
    "GCOL" 1 0 0 0, its size (8 bytes), then objects:
    index (2), references (2), 0 (4), size (8), content to a multiple of 8
    index 0 is the free space to the end; its size includes these 16 bytes; a rest below 16 bytes has no header

Source: HDF5 File Format Specification, version 3, section III.E
"""

import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

SIGNATURE = b"GCOL\1\0\0\0"  # no image has all eight bytes by chance, at a multiple of 8
HEAD = 16
SEARCHED_BYTES = 64 << 20  # at either end
PROGRAM = Path(__file__).with_name("read_texts.py")
CPU_S = 10  # a thousand times what it takes
KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")  # of the environment: the process is no rank


def heap_problem(path: Path) -> str | None:
    """Describe a problem with a heap of the file; None if all are good. Raises OSError."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            ends = ((0, SEARCHED_BYTES), (max(SEARCHED_BYTES, len(data) - SEARCHED_BYTES), len(data)))
            found = (place for start, stop in ends for place in _places(data, start, stop))
            damaged = next((place for place in found if not _is_whole(data, place)), None)
            searched = len(data) <= 2 * SEARCHED_BYTES
    if damaged is not None:
        return f"the texts at byte {damaged} are damaged"
    return None if searched else _reading_problem(path)


def _reading_problem(path: Path) -> str | None:
    """Describe how reading the texts of the file ends a process, if it does."""
    command = [sys.executable, "-P", str(PROGRAM), str(path.absolute()), str(CPU_S)]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {"OPENBLAS_NUM_THREADS": "1"}
    nowhere = subprocess.DEVNULL
    status = subprocess.run(command, env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere).returncode
    return f"reading its texts, as the names of classes, has no end within {CPU_S} s" if status < 0 else None


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
