"""The HDF5 file of a data set: its layout, in one place, and how it is written.

/                 format="ringtrain-dataset" version=1 name source licence (text)
                  classes (list of text)  mean std (float64 [C], of the training images, 0 … 255)
                  checksum (sha256 in hexadecimal, of classes, mean, std and mean_image; see metadata.py; may be absent)
/mean_image       float32 [H, W, C], of the training images
/train, /test     checksum (sha256 in hexadecimal; see content.Checksum); /test may be absent
    images        uint8 [N, H, W, C]; or inputs of other types of numbers, with 1 to 4 axes after N
    labels        int32 [N], -1 where an example has none; class numbers [N, ...]; or values, float32 or float64

Examples are read and written a block at a time, with their checksums and statistics.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from ringtrain.data.content import Content, Part, Progress, no_progress, row_blocks
from ringtrain.data.decoding import hdf5_errors
from ringtrain.data.file.contents import label_problems, read_part
from ringtrain.data.file.layout import FORMAT, VERSION, layout_problems
from ringtrain.data.file.metadata import metadata_checksum, seal_problems
from ringtrain.data.file.source import SourcePart, memory_part, open_hdf5
from ringtrain.data.file.statistics import running_statistics
from ringtrain.errors import DataError
from ringtrain.storage import hdf5

CHUNK_ROWS = 512


def check_target(path: Path, force: bool) -> None:
    """Check, before any work, that ``path`` can be written. Raises: DataError"""
    if path.is_dir():
        raise DataError(f"{path} is a folder: name the .h5 file to write")
    if path.exists() and not force:
        raise DataError(f"{path} exists: give another name, or --force to replace it")
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}: make it first")
    if not os.access(path.parent, os.W_OK):
        raise DataError(f"{path}: the folder {path.parent} is not writable")


def write_dataset(
    path, content: Content, force: bool = False, compress: bool = False, progress: Progress = no_progress
) -> None:
    """Write all of it or nothing: a temporary file beside ``path``, fsync, rename.

    ``compress`` takes gzip: smaller, and slower to open.
    Raises: DataError where ``path`` exists and ``force`` is false, the disk refuses, or :func:`.dataset.open_dataset`
    would refuse what was written.
    """
    path = Path(path)
    check_target(path, force)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with h5py.File(aside, "x", libver=hdf5.LIBVER) as file:
            _write(file, content, compress, progress)
        _check_written(path, aside)
        _sync(aside)
        os.replace(aside, path)
        _sync(path.parent)
    except OSError as error:
        raise DataError(f"{path} could not be written: {error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


def _check_written(path: Path, aside: Path) -> None:
    """Check all that opening checks, except the examples' checksums, which need the images."""
    with open_hdf5(aside) as file, hdf5_errors(aside):
        problem = next(_written_problems(file), None)
    if problem:
        raise DataError(f"{path} is not written, because it could not be opened afterwards: {problem}")


def _written_problems(file) -> Iterator[str]:
    yield from layout_problems(file)
    yield from seal_problems(file)
    for name in ("train", "test"):
        if name in file:
            labels = file[name]["labels"]
            for rows in row_blocks(labels.shape[0], labels[:1].nbytes):
                yield from label_problems(name, labels[rows], len(file.attrs["classes"]))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file, content: Content, compress: bool, progress: Progress) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["version"] = VERSION
    for key in ("name", "source", "licence"):
        file.attrs[key] = getattr(content, key)
    file.attrs["classes"] = np.array(content.classes, dtype=h5py.string_dtype())
    for name, part in content.parts():
        statistics = _write_part(file.create_group(name), source_part(part), compress, name == "train", progress)
        if statistics is not None:
            file.attrs["mean"] = statistics.mean
            file.attrs["std"] = statistics.std
            file.attrs["checksum"] = metadata_checksum(content.classes, statistics)
            file.create_dataset("mean_image", data=statistics.mean_image)


def source_part(part: Part | SourcePart) -> SourcePart:
    """Return a part whose blocks can be read."""
    return part if isinstance(part, SourcePart) else memory_part(part.images, part.labels)


def _write_part(group, part: SourcePart, compress: bool, training: bool, progress: Progress):
    """Write a part; the statistics of a training part."""
    shape, dtype = part.inputs.shape, part.inputs.dtype
    layout = {}
    if compress:
        layout = {"chunks": (min(CHUNK_ROWS, shape[0]), *shape[1:]), "compression": "gzip", "compression_opts": 9}
    images = _Writer(group.create_dataset("images", shape, dtype, **layout))
    labels = _Writer(group.create_dataset("labels", (shape[0], *part.label_shape), part.label_dtype))
    statistics = running_statistics(shape[1:], dtype, part.inputs.where) if training else None
    takers = [images, statistics] if statistics is not None else [images]
    group.attrs["checksum"] = read_part(part, progress, None, takers, [labels], "writing")
    return statistics.finish() if statistics is not None else None


class _Writer:
    """Writes blocks one after another to an array of a file."""

    def __init__(self, array):
        self._array, self._start = array, 0

    def add(self, block) -> None:
        self._array[self._start : self._start + len(block)] = block
        self._start += len(block)
