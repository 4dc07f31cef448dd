"""Shards of examples as a map-style dataset of PyTorch, read by ringtrain's own readers where they lie."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ringtrain.data.batches.order import FULL_BYTES, Windows
from ringtrain.data.batches.pictures import View
from ringtrain.data.file.source import open_source
from ringtrain.data.image_files.index import alone
from ringtrain.data.image_files.open import accepts, open_parts
from ringtrain.data.split import type_read
from ringtrain.data.stored.base import MemoryArray, StoredArray
from ringtrain.errors import DataError

Read = Callable[[np.ndarray], Any]  # of examples, int64 [n] → their arrays


def open_dataset(path: str | os.PathLike, part: str = "train", transform: Callable | None = None) -> "ShardDataset":
    """Open what ``ringtrain train --data`` takes: ``"train-*.h5"``, ``FILE.h5:images,labels``, ``.npy``, ``.npz``, tar
    shards and folders of images. Examples stay in their files, but for archives that are compressed as a whole.

    part:      "train" or "test", of files that have both
    transform: of each input, an array; None: a tensor is made of it

    An example is (input, label), or (input,) without labels. Shapes: as stored, images [H, W, C]; class numbers int64.
    Raises: DataError
    """
    return ShardDataset(os.fspath(path), part, transform)


class ShardDataset(Dataset):
    """Examples in shards, made by :func:`open_dataset`; workers of a loader read side by side. ``windows``: how an
    :class:`~ringtrain.torch.ExactSampler` permutes a set of more than 4 GiB, as ``--shuffle blocks`` does; None:
    as a whole."""

    def __init__(self, path: str, part: str, transform: Callable | None):
        self._arguments = path, part, transform
        self._make, self.windows = transform or torch.as_tensor, None
        self._labels: Read | None = None
        self._inputs: Read
        if accepts(path):
            images = open_parts(path, View((1, 1)), 3, 1, alone, False)[0]["train"]
            self._count, self._inputs = images.count, lambda rows: [images.image(row) for row in rows.tolist()]
            self._labels = lambda rows: np.take(np.asarray(images.labels), rows).astype(np.int64)
            return
        parts = open_source(path).parts
        if part not in parts:
            raise DataError(f"{path} has no part {part!r}: it has {', '.join(parts)}")
        self._count, inputs, labels = parts[part].count, parts[part].inputs, parts[part].labels
        self._inputs = _reader(inputs, type_read(inputs.dtype))
        if labels is not None:
            self._labels = _reader(labels, parts[part].label_dtype if parts[part].of_values else np.dtype(np.int64))
        if inputs.nbytes > FULL_BYTES:
            self.windows = Windows.of(inputs.count, inputs.row_bytes)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple:
        if not 0 <= index < self._count:
            raise IndexError(f"example {index} of {self._count} in {self._arguments[0]}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple]:
        """Return examples: PyTorch's loader asks for those of a batch at once."""
        rows = np.asarray(indices, np.int64)
        inputs: list[Any] = [self._make(each) for each in self._inputs(rows)]
        if self._labels is None:
            return [(each,) for each in inputs]
        return list(zip(inputs, torch.as_tensor(self._labels(rows)), strict=True))

    def __reduce__(self) -> tuple:
        return ShardDataset, self._arguments  # a worker that is spawned opens the files anew


def _reader(array: StoredArray, dtype: np.dtype) -> Read:
    """Return a function that reads rows of an array as this type."""
    stored = array if array.by_rows else MemoryArray(array.rows(0, array.count))

    def read(rows: np.ndarray) -> np.ndarray:
        out = np.empty((rows.size, *stored.shape[1:]), dtype)
        stored.take(rows, out)
        return out

    return read
