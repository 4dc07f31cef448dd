"""Arrays of NumPy's files: .npy, and members of .npz, which are .npy files in a zip archive."""

import math
import threading
import zipfile
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import IO

import numpy as np

from ringtrain.data import texts
from ringtrain.data.decoding import decoder_errors, decoding
from ringtrain.data.stored.base import ReshapedRows, StoredArray, bytes_of, check_type
from ringtrain.data.stored.flat import Crc, FlatArray, OpenFiles
from ringtrain.errors import DataError

LOCAL_HEADER = 30  # bytes of a member's header before its name
PIECE_BYTES = 1 << 20


def open_npy(path: Path, files: OpenFiles) -> StoredArray:
    """Open a .npy file. Raises: DataError"""
    with decoding(texts.NOT_READ_FILE.format(path=path)), open(path, "rb") as file:
        shape, dtype, arranged = _header(file, str(path))
        return arranged(FlatArray(path, file.tell(), shape, dtype, str(path), files))


class NpzFile:
    """An archive's arrays, by name; each is looked at when it is asked for. Raises: DataError"""

    def __init__(self, path: Path, files: OpenFiles):
        self._path, self._files = path, files
        # A file that is no archive NumPy would read as an array, or a pickle.
        with decoding(texts.NOT_READ_FILE.format(path=path)):
            if not zipfile.is_zipfile(path):
                raise DataError(texts.NPZ_NO_ARCHIVE.format(path=path))
            with zipfile.ZipFile(path) as archive:
                members = [info for info in archive.infolist() if not info.is_dir()]
        self._members = {info.filename.removesuffix(".npy"): info for info in members}
        self.names = tuple(self._members)

    def array(self, name: str) -> StoredArray:
        """Return the array of a name. Raises: DataError"""
        if name not in self._members:
            raise DataError(f"{self._path} has no array {name}; it has {', '.join(self.names) or 'none'}")
        with decoding(texts.NOT_READ_FILE.format(path=f"{self._path}: {name}")), zipfile.ZipFile(self._path) as archive:
            return _member(self._path, archive, self._members[name], self._files)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, files: OpenFiles) -> StoredArray:
    where = f"{path}: {info.filename.removesuffix('.npy')}"
    with archive.open(info) as member:
        if member.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            raise DataError(f"{path}: {info.filename.removesuffix('.npy')} is not a NumPy array")
        member.seek(0)
        shape, dtype, arranged = _header(member, where)
        header = member.tell()
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if info.file_size != header + nbytes:
        raise DataError(
            f"{where} has {info.file_size - header} bytes of values, but its shape needs {nbytes}: copy it again"
        )
    if info.compress_type != zipfile.ZIP_STORED:
        return arranged(InflatedArray(path, info, header, shape, dtype, where, files))
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        local = file.read(LOCAL_HEADER)
    lengths = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    start = info.header_offset + LOCAL_HEADER + lengths
    crc = Crc(start, info.file_size, info.CRC)  # which zipfile would compare, but rows are read past it
    return arranged(FlatArray(path, start + header, shape, dtype, where, files, crc))


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype, Callable[[StoredArray], StoredArray]]:
    """Read the header of a .npy; the file then stands at the first value. Return the shape and type in which values are
    to be read, and what makes the array of them. Raises: DataError, ValueError"""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read(file)
    check_type(where, dtype, shape)
    if columns_first and len(shape) > 1:
        return (math.prod(shape),), dtype, partial(ColumnsArray, shape=shape)
    return shape, dtype, lambda array: array


class ColumnsArray(ReshapedRows):
    """An array that is stored column by column (Fortran order), so that a row lies in as many places as it has values.
    ``array``: all values in their order."""

    def __init__(self, array: StoredArray, shape: tuple[int, ...]):
        super().__init__(array, ())
        self.shape, self.by_rows = shape, False

    @cached_property
    def _values(self) -> np.ndarray:
        return self._array.whole().reshape(self.shape, order="F")

    def read(self, start: int, stop: int, out) -> None:
        np.copyto(out, self._values[start:stop], casting="unsafe")

    def take(self, examples, out) -> None:
        out[...] = self._values[examples]


class InflatedArray(StoredArray):
    """A compressed member of an archive: read from its start, so later rows only after the earlier ones. The last ones
    are read together with the CRC-32 of all."""

    by_rows = False

    def __init__(
        self, path: Path, info: zipfile.ZipInfo, header: int, shape, dtype: np.dtype, where: str, files: OpenFiles
    ):
        self._path, self._info, self._header, self._files, self._key = path, info, header, files, object()
        self.where, self.shape, self.dtype, self._stored = where, tuple(shape), check_type(where, dtype, shape), dtype
        self._lock = threading.Lock()

    def read(self, start: int, stop: int, out) -> None:
        rows = np.empty((stop - start, *self.shape[1:]), self._stored)
        with self._lock, decoder_errors(texts.NOT_READ_FILE.format(path=self.where)):
            archive = partial(zipfile.ZipFile, self._path)
            stream = self._files.object(self._key, lambda: archive().open(self._info))
            self._go_to(stream, self._header + start * self.row_bytes)
            memory = bytes_of(rows)
            while memory:
                got = stream.readinto(memory[:PIECE_BYTES])
                if not got:
                    raise DataError(texts.ENDED_BEFORE.format(where=self.where, offset=stream.tell()))
                memory = memory[got:]
        np.copyto(out, rows, casting="unsafe")

    def _go_to(self, stream: IO[bytes], offset: int) -> None:
        """Read what lies before. A seek would not end where the stream does, but at the offset that a file claims."""
        if stream.tell() > offset:
            stream.seek(0)
        while left := offset - stream.tell():
            if not stream.read(min(PIECE_BYTES, left)):
                raise DataError(texts.ENDED_BEFORE.format(where=self.where, offset=stream.tell()))
