"""HDF5 files from untrusted sources, read as data.

The format offers more than arrays: links to other files, values in other files or computed from those, filters and
connectors that the library loads as code from a folder, references and values of free length, and shapes of any size
without storage behind them. No checkpoint and no data set needs these. Their readers call these checks before they
touch an object; no check follows a link out of the file, or loads a plugin.

Texts of free length lie in heaps. A damaged length in one sends the library's C code into an endless loop, which no
signal interrupts, so a heap is checked as the library reads it. A global heap collection is
    "GCOL" 1 0 0 0, its size (8 bytes), then objects:
    index (2), references (2), 0 (4), size (8), content to a multiple of 8
    index 0 is the free space to the end; its size includes these 16 bytes; a rest below 16 bytes has no header

Source: HDF5 File Format Specification, version 3, section III.E
"""

import io
import math
import struct
from collections.abc import Collection

import h5py
from h5py import h5a, h5d, h5l, h5pl, h5z

from ringtrain.template import LINES, escaped

PLAIN_FILTERS = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32, h5z.FILTER_LZF}  # in h5py itself
MOST_EXPANDED = 1100  # deflate expands a byte to 1032 at most; missing chunks would be read as any number of zeros
FILL_BYTES = 16 << 20  # of an array that was never written, which reads as its fill value, at most
MOST_LINKS = 16  # followed one after another
ATTRIBUTE_BYTES = 16 << 20
HEAP, HEAP_HEAD = b"GCOL\1\0\0\0", 16
LIBVER = "v108", "v110"  # of files with an attribute over 64 KiB, as of many classes; HDF5 1.10 reads them


# No plugins: a file names filters by number, and the library would load whatever lies in its folders to find one. Here,
# once: h5py does not lock these calls between threads.
while h5pl.size():
    h5pl.remove(0)


def open_file(source) -> h5py.File:
    """Open a path or a file for reading. Raises OSError.

    It takes no lock: a finished file never changes, and some cluster file systems have no locks.
    """
    return h5py.File(source, "r", locking=False)


class CheckedFile(io.FileIO):
    """A file for :func:`open_file` that refuses damaged heaps: the library reads each from its start on."""

    def readinto(self, buffer) -> int:
        start = self.tell()
        count = super().readinto(buffer)
        if bytes(buffer[: len(HEAP)]) == HEAP:
            self._check_heap(start)
        return count

    def _check_heap(self, start: int) -> None:
        """Raise OSError unless the objects fill the collection without a gap."""
        self.seek(start + len(HEAP))
        size = int.from_bytes(self.read(8), "little")
        if start + size > self.seek(0, io.SEEK_END):
            return  # cut short: the library reports it
        self.seek(start)
        heap, offset = self.read(size), HEAP_HEAD
        while offset + HEAP_HEAD <= size:
            index, length = struct.unpack_from("<H6xQ", heap, offset)
            step = length if index == 0 else HEAP_HEAD + -(-length // 8) * 8
            if step < HEAP_HEAD or offset + step > size:
                raise OSError(f"the texts at byte {start} are damaged")
            offset += step


def is_own(group: h5py.Group, name: str) -> bool:
    """Return whether an object of that name lies in this very file, without following a link."""
    key = name.encode("utf-8", "surrogateescape")
    if "/" in name or not group.id.links.exists(key):
        return False
    return group.id.links.get_info(key).type == h5l.TYPE_HARD


def find(file: h5py.File, path: str) -> tuple[h5py.Group | h5py.Dataset | None, h5py.Group, str]:
    """Return (the object of a path, or None; the last group on the way; the name that was looked for in it). Soft links
    are followed, by their text, within this very file; no link to another file is."""
    owner, names, links = file, path.strip("/").split("/")[::-1], 0
    while True:
        name = names.pop()
        key = name.encode("utf-8", "surrogateescape")
        if not name or not owner.id.links.exists(key):
            return None, owner, name
        if not is_own(owner, name):
            links += 1
            if owner.id.links.get_info(key).type != h5l.TYPE_SOFT or links > MOST_LINKS:
                return None, owner, name
            target = owner.id.links.get_val(key).decode("utf-8", "surrogateescape")
            owner = file if target.startswith("/") else owner
            names += target.strip("/").split("/")[::-1]
        elif not names:
            return owner[name], owner, name
        elif owner.get(name, getclass=True) is not h5py.Group:
            return None, owner, name
        else:
            owner = owner[name]


def storage_problem(array: h5py.Dataset) -> str | None:
    """Describe where the values of an array lie, if that is not in this file, or a filter that the library would have
    to load."""
    plan = array.id.get_create_plist()
    if plan.get_layout() == h5d.VIRTUAL or (plan.get_layout() != h5d.CHUNKED and plan.get_external_count()):
        return "keeps its values in another file, which ringtrain does not read; copy them into this one"
    filters = [plan.get_filter(k) for k in range(plan.get_nfilters())]
    for number, *_, name in filters:
        if number not in PLAIN_FILTERS:
            named = f"{number} ({name.decode(errors='replace')})"
            return f"was written with the filter {named}, not read here: write it with gzip (h5repack -f GZIP=4 IN OUT)"
    return None


def claim_problem(array: h5py.Dataset) -> str | None:
    """Describe a shape of more bytes than the stored bytes can decompress to."""
    claimed = nbytes_of(array)
    stored = array.id.get_storage_size()
    most = stored * (MOST_EXPANDED if array.chunks else 1) or FILL_BYTES
    if claimed > most:
        return f"claims {claimed:,} bytes, but {stored:,} are stored"
    if array.chunks and math.prod(array.chunks) * array.dtype.itemsize > max(claimed, 1 << 24):
        return f"has chunks of {math.prod(array.chunks):,} elements, more than the array has"
    return None


def nbytes_of(array: h5py.Dataset) -> int:
    """Return the exact size; a product of machine integers would overflow."""
    return math.prod(array.shape or (0,)) * array.dtype.itemsize


def attribute(owner, name: str, kinds: Collection[int]):
    """Return an attribute's value; None if it is missing, of another kind (h5t.INTEGER, h5t.FLOAT, h5t.STRING) or
    larger than any attribute."""
    key = name.encode()
    if not h5a.exists(owner.id, key):
        return None
    handle = h5a.open(owner.id, key)
    if handle.get_type().get_class() not in kinds:
        return None
    points = handle.get_space().get_simple_extent_npoints()
    if points * handle.get_type().get_size() > ATTRIBUTE_BYTES:
        return None
    return owner.attrs[name]


def is_text(value) -> bool:
    """Return whether a value is text that a terminal shows as it is, without control characters."""
    return isinstance(value, str) and escaped(value, LINES) == value


def as_text(name: str) -> str:
    """Return a name as HDF5 can store it: bytes that are no text are escaped."""
    return name.encode(errors="backslashreplace").decode()
