"""Image files as a split: each example is read and decoded when a batch needs it."""

import hashlib
import os
import resource
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ringtrain.data import texts
from ringtrain.data.batches.pictures import PictureSplit, View
from ringtrain.data.content import IGNORE
from ringtrain.data.image_files.index import Index
from ringtrain.data.images import FilePicture
from ringtrain.data.split import Shape
from ringtrain.errors import DataError, plain


class OpenShards:
    """Shards that stay open, up to a part of the files that the process may have open; others are opened to be read."""

    def __init__(self, paths):
        self._paths = paths
        most = max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._files = {number: os.open(path, os.O_RDONLY) for number, path in enumerate(paths[:most])}

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Read bytes of a shard; any thread may."""
        if shard in self._files:
            return _read(self._files[shard], offset, size)
        file = os.open(self._paths[shard], os.O_RDONLY)
        try:
            return _read(file, offset, size)
        finally:
            os.close(file)

    def close(self) -> None:
        """Close them. A second call does nothing."""
        while self._files:
            os.close(self._files.popitem()[1])

    __del__ = close


def _read(file: int, offset: int, size: int) -> bytes:
    data = os.pread(file, size, offset)
    while data and len(data) < size:
        more = os.pread(file, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


@dataclass(eq=False)
class ImageFilesSplit(PictureSplit):
    """Image files with a class number each, in tar shards or (``shards`` None) in folders. All take the shape of
    ``view``, with ``channels``. ``notes``: on what lies beside them and is left out."""

    index: Index
    channels: int
    view: View
    threads: int
    shards: OpenShards | None
    notes: tuple[str, ...] = ()

    label_shape = ()
    label_dtype = np.dtype(np.int32)
    dtype = np.dtype(np.uint8)

    def __post_init__(self):
        labels = self.index.spans[2].astype(np.int32)
        labels.flags.writeable = False
        self.labels = labels

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.index.count

    @property
    def row_bytes(self) -> int:
        """The mean size of a file."""
        return max(1, int(self.index.spans[1].mean()))

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return *self.view.size, self.channels

    @cached_property
    def checksum(self) -> str:  # type: ignore[override]
        """The sha256 of a line "image files N C", the names, each ended by a zero, and the sizes and labels (int64,
        little-endian). The bytes of the images are not read."""
        running = hashlib.sha256(f"image files {self.count} {self.channels}\n".encode())
        running.update(np.ascontiguousarray(self.index.names).data)
        running.update(np.ascontiguousarray(self.index.spans[1:], "<i8").data)
        return running.hexdigest()

    def valid(self, examples) -> int:
        return int(np.count_nonzero(self.index.spans[2, examples] != IGNORE))

    def where(self, example: int) -> str:
        """Return an example's place, for people."""
        place, name = self.index.places[self.index.place[example]], plain(self.index.name(example))
        if self.shards is None:
            return os.path.join(place, name)
        return texts.MEMBER_AT(shard=place, member=name, offset=self.index.spans[0, example])

    def picture(self, example: int) -> FilePicture:
        return FilePicture(self.content(example), self.where(example), self.channels)

    def close(self) -> None:
        """Close its files."""
        if self.shards is not None:
            self.shards.close()

    def content(self, example: int) -> bytes:
        """Return the bytes of an example's file. Raises: DataError"""
        place, (offset, size, _) = int(self.index.place[example]), self.index.spans[:, example].tolist()
        try:
            if self.shards is not None:
                data = self.shards.read(place, offset, size)
            else:
                with open(os.path.join(self.index.places[place], self.index.name(example)), "rb") as file:
                    data = file.read()
        except OSError as error:
            raise DataError(f"{self.where(example)} could not be read: {error.strerror or error}") from error
        if len(data) != size:
            raise DataError(
                f"{self.where(example)} has {len(data)} bytes, but had {size} when it was opened: start the run again"
            )
        return data
