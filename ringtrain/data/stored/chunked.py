"""Arrays of HDF5 files: contiguous ones as they lie, chunked and compressed ones decoded in blocks."""

import threading
from collections import OrderedDict
from pathlib import Path

import h5py
import numpy as np
from h5py import h5d, h5t

from ringtrain.data.decoding import hdf5_errors
from ringtrain.data.stored.base import StoredArray, check_type
from ringtrain.data.stored.flat import FlatArray, OpenFiles
from ringtrain.storage import hdf5

BLOCK_BYTES = 1 << 20
KEPT_BYTES = 288 << 20  # decoded blocks of a process: two windows of an order by blocks, and some more


class ChunkedArray(StoredArray):
    """An array that HDF5's library has to decode. Blocks of rows stay decoded as long as there is room. The library
    compares Fletcher's checksum, where the file has it, with each chunk that it reads."""

    def __init__(self, path: Path, array: h5py.Dataset, where: str, files: OpenFiles):
        self._path, self._name, self.where, self._files = path, array.name, where, files
        self.shape, self.dtype = array.shape, check_type(where, array.dtype, array.shape)
        self._rows = max(1, BLOCK_BYTES // self.row_bytes)
        self._blocks: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.RLock()

    def read(self, start: int, stop: int, out) -> None:
        with self._lock, hdf5_errors(self._path, self._name):
            file = self._files.object(self._path, lambda: hdf5.open_file(self._path))
            array = file[self._name]
            if out.dtype == array.dtype and out.flags.c_contiguous:
                array.read_direct(out, np.s_[start:stop])
            else:
                out[...] = array[start:stop]

    def take(self, examples, out) -> None:
        with self._lock:
            numbers = examples // self._rows
            for number in np.unique(numbers):
                positions = np.flatnonzero(numbers == number)
                out[positions] = self._block(int(number))[examples[positions] - number * self._rows]

    def _block(self, number: int) -> np.ndarray:
        if number not in self._blocks:
            start = number * self._rows
            block = self.rows(start, min(start + self._rows, self.count))
            while self._blocks and sum(kept.nbytes for kept in self._blocks.values()) + block.nbytes > KEPT_BYTES:
                self._blocks.popitem(last=False)
            self._blocks[number] = block
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def advise(self, start: int, stop: int, needed: bool) -> None:
        with self._lock:
            for number in range(start // self._rows, -(-stop // self._rows)) if needed else ():
                self._block(number)


def stored_array(path: Path, name: str, array: h5py.Dataset, files: OpenFiles) -> StoredArray:
    """Return an array of an open file, as it is best read. Its form has been checked."""
    where = f"{path}:{name}"
    contiguous = array.id.get_create_plist().get_layout() == h5d.CONTIGUOUS
    plain = array.dtype.kind in "iuf" and h5t.py_create(array.dtype).equal(array.id.get_type())
    offset = array.id.get_offset() if contiguous and plain and array.file.userblock_size == 0 else None
    if offset is None:
        return ChunkedArray(path, array, where, files)
    return FlatArray(path, offset, array.shape, array.dtype, where, files)
