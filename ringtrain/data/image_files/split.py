"""Image files as a split: each example is read and decoded when a batch needs it."""

import hashlib
import os
from functools import cached_property

import numpy as np

from ringtrain.data.batches.pictures import PictureSplit, View
from ringtrain.data.image_files.index import Index
from ringtrain.data.image_files.shards import member_at
from ringtrain.data.images import FilePicture
from ringtrain.data.stored.flat import OpenFiles
from ringtrain.errors import DataError, plain


def _read(file: int, offset: int, size: int) -> bytes:
    data = os.pread(file, size, offset)
    while data and len(data) < size:
        more = os.pread(file, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


class ImageFilesSplit(PictureSplit):
    """Image files with a class number each, in tar shards or (``shards`` None) in folders. All take the shape of
    ``view``, with ``channels``. ``notes``: on what lies beside them and is left out."""

    dtype = np.dtype(np.uint8)
    notes: tuple[str, ...] = ()
    remedy = "; `ringtrain data check` lists all that are bad, and --bad-images skip goes on without them"
    view: View

    def __init__(self, index: Index, channels: int, view: View, threads: int, shards: OpenFiles | None):
        self.index, self.channels, self.view, self.threads, self.shards = index, channels, view, threads, shards
        self.count, self.shape = index.count, (*view.size, channels)
        self.labels = index.spans[2].astype(np.int32)
        self.labels.flags.writeable = False

    @property
    def row_bytes(self) -> int:
        """The mean size of a file."""
        return max(1, int(self.index.spans[1].mean()))

    @cached_property
    def checksum(self) -> str:  # type: ignore[override]
        """The sha256 of a line "image files N C", the names, each ended by a zero, and the sizes and labels (int64,
        little-endian). The bytes of the images are not read."""
        running = hashlib.sha256(f"image files {self.count} {self.channels}\n".encode())
        running.update(np.ascontiguousarray(self.index.names).data)
        running.update(np.ascontiguousarray(self.index.spans[1:], "<i8").data)
        return running.hexdigest()

    def where(self, example: int) -> str:
        """Return the path or the member of an example, for people."""
        container, name = self.index.containers[self.index.container[example]], self.index.name(example)
        if self.shards is None:
            return os.path.join(container, plain(name))
        return member_at(container, name, self.index.spans[0, example])

    def picture(self, example: int) -> FilePicture:
        return FilePicture(self.content(example), self.where(example), self.channels)

    def close(self) -> None:
        if self.shards is not None:
            self.shards.close()

    def content(self, example: int) -> bytes:
        """Return the bytes of an example's file. Raises: DataError"""
        container = self.index.containers[self.index.container[example]]
        offset, size, _ = self.index.spans[:, example].tolist()
        try:
            if self.shards is not None:
                with self.shards.use(container) as file:
                    data = _read(file, offset, size)
            else:
                with open(os.path.join(container, self.index.name(example)), "rb") as file:
                    data = file.read()
        except OSError as error:
            raise DataError(f"{self.where(example)} could not be read: {error.strerror or error}") from error
        if len(data) != size:
            raise DataError(
                f"{self.where(example)} has {len(data)} bytes, but had {size} when it was opened: start the run again"
            )
        return data
