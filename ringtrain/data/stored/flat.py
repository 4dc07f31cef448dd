"""Rows that lie one after another in a file: read into the batch by ``preadv``.

The file is not mapped: mapped pages count as the process's own memory. Pages that the system keeps are shared by the
ranks of a node; it is asked to read those of blocks ahead, and told which it may drop.
"""

import os
import resource
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringtrain.data import texts
from ringtrain.data.stored.base import StoredArray, bytes_of, check_type
from ringtrain.errors import DataError

READAHEAD_BYTES = 128 << 10  # of one request: the system cuts larger ones to a device's own limit
MOST_OPEN = 1 << 12
PIECE_BYTES = 1 << 20  # for a checksum, at a time


class OpenFiles:
    """Descriptors of files, for any thread: ``paths`` and files that are used stay open, up to a part of
    the files that the process may have open; others are opened to be used. And objects that hold a file of their own,
    up to a smaller part. Raises: OSError"""

    def __init__(self, paths: Iterable[str | Path] = ()):
        self._lock = threading.Lock()
        self._open: dict[str | Path, int] = {}
        self._objects: OrderedDict[Hashable, Any] = OrderedDict()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = MOST_OPEN if limit == resource.RLIM_INFINITY else min(MOST_OPEN, limit // 4)
        for path in paths:
            self._kept(path)

    def _kept(self, path: str | Path) -> int | None:
        with self._lock:
            if path not in self._open and len(self._open) < self._most:
                self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return self._open.get(path)

    @contextmanager
    def use(self, path: str | Path) -> Iterator[int]:
        kept = self._kept(path)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if kept is None else kept
        try:
            yield file
        finally:
            if kept is None:
                os.close(file)

    def object(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the object of a key, made unless it is kept: those used last are. Another is closed with the last
        reference to it, so a thread that uses it goes on."""
        with self._lock:
            if key not in self._objects:
                while len(self._objects) >= max(1, self._most // 2):
                    self._objects.popitem(last=False)
                self._objects[key] = make()
            self._objects.move_to_end(key)
            return self._objects[key]

    def close(self) -> None:
        """Close all descriptors. A second call does nothing."""
        while self._open:
            os.close(self._open.popitem()[1])

    __del__ = close


@dataclass(frozen=True, slots=True)
class Crc:
    """The CRC-32 of a file's bytes from ``start`` on, as their container has it."""

    start: int
    nbytes: int
    value: int


class FlatArray(StoredArray):
    """An array at a place of a file. Raises DataError if its type is not numeric or the file is too short."""

    def __init__(
        self, path: Path, offset: int, shape, dtype: np.dtype, where: str, files: OpenFiles, crc: Crc | None = None
    ):
        self._path, self._offset, self._files, self._crc = path, offset, files, crc
        self.where, self.shape, self.dtype = where, tuple(shape), check_type(where, dtype, shape)
        self._stored = dtype
        size = path.stat().st_size
        if offset + self.nbytes > size:
            raise DataError(
                f"{where} is truncated: it needs {self.nbytes} bytes from byte {offset} on, and the file has {size}; "
                "copy it again"
            )

    @contextmanager
    def _file(self) -> Iterator[int]:
        try:
            with self._files.use(self._path) as file:
                yield file
        except OSError as error:
            raise DataError(texts.SOURCE_UNREADABLE.format(path=self._path, error=error.strerror or error)) from error

    @contextmanager
    def _rows(self, out) -> Iterator[tuple[int, memoryview]]:
        """Yield the file, and the bytes of rows as they are stored, which ``out`` gets."""
        rows = out if out.dtype == self._stored and out.flags.c_contiguous else np.empty(out.shape, self._stored)
        with self._file() as file:
            yield file, bytes_of(rows)
        if rows is not out:
            np.copyto(out, rows, casting="unsafe")

    def whole(self) -> np.ndarray:
        return np.memmap(self._path, self._stored, "r", self._offset, self.shape)

    def read(self, start: int, stop: int, out) -> None:
        with self._rows(out) as (file, memory):
            self._fill(file, start, memory)

    def verify(self) -> None:
        if self._crc is None:
            return
        value, piece = 0, memoryview(bytearray(PIECE_BYTES))
        at, end = self._crc.start, self._crc.start + self._crc.nbytes
        with self._file() as file:
            while at < end:
                read = os.preadv(file, [piece[: end - at]], at)
                if not read:
                    raise DataError(texts.ENDED_BEFORE.format(where=self.where, offset=at))
                value, at = zlib.crc32(piece[:read], value), at + read
        if value != self._crc.value:
            raise DataError(
                f"{self.where} changed after it was written: its CRC-32 is {value:08x}, the archive says "
                f"{self._crc.value:08x}; copy it again"
            )
        self._crc = None

    def take(self, examples, out) -> None:
        """Read the rows by one call if all are consecutive, else one by one in the file's order."""
        each = self.row_bytes
        with self._rows(out) as (file, memory):
            if examples.size and np.all(np.diff(examples) == 1):
                self._fill(file, int(examples[0]), memory)
                return
            for row in np.argsort(examples, kind="stable").tolist():
                self._fill(file, int(examples[row]), memory[row * each : (row + 1) * each])

    def _fill(self, file: int, start: int, memory: memoryview) -> None:
        offset = self._offset + start * self.row_bytes
        while memory:
            got = os.preadv(file, [memory], offset)
            if not got:
                raise DataError(texts.ENDED_BEFORE.format(where=self.where, offset=offset))
            memory, offset = memory[got:], offset + got

    def advise(self, start: int, stop: int, needed: bool) -> None:
        first, last = self._offset + start * self.row_bytes, self._offset + stop * self.row_bytes
        each, advice = (READAHEAD_BYTES, os.POSIX_FADV_WILLNEED) if needed else (last - first, os.POSIX_FADV_DONTNEED)
        with self._file() as file:
            for offset in range(first, last, each):
                os.posix_fadvise(file, offset, min(each, last - offset), advice)
