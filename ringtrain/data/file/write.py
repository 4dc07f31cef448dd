"""The writer of a data set's HDF5 file (see format.py): by blocks, with checksums and statistics."""

import contextlib
import os
import secrets
from pathlib import Path

import h5py
import numpy as np

from ringtrain.data.content import Content, Progress, no_progress
from ringtrain.data.file.contents import part_label_problems, read_part
from ringtrain.data.file.format import FORMAT, TEXTS, VERSION, metadata_checksum
from ringtrain.data.file.source import open_source
from ringtrain.data.file.statistics import running_statistics
from ringtrain.errors import DataError
from ringtrain.storage import hdf5


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


def write_dataset(path, content: Content, force: bool = False, progress: Progress = no_progress) -> None:
    """Write all of it or nothing: a temporary file beside ``path``, fsync, rename.

    Raises: DataError where ``path`` exists and ``force`` is false, the disk refuses, or :func:`.dataset.open_dataset`
    would refuse what was written.
    """
    path = Path(path)
    check_target(path, force)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with h5py.File(aside, "x", libver=hdf5.LIBVER) as file:
            _write(file, content, progress)
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
    """Check all that opening does, except the examples' checksums, which need the images."""
    try:
        source = open_source(aside)
        for name, part in source.parts.items():
            for problem in part_label_problems(name, part, len(source.classes or ())):
                raise DataError(problem)
    except DataError as error:
        raise DataError(f"{path} is not written, because it could not be opened afterwards: {error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file, content: Content, progress: Progress) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["version"] = VERSION
    for key in TEXTS:
        file.attrs[key] = getattr(content, key)
    file.attrs["classes"] = np.array(content.classes, dtype=h5py.string_dtype())
    for name, part in content.parts():
        group, statistics = file.create_group(name), running_statistics(part.inputs)
        images = _Writer(group.create_dataset("images", part.inputs.shape, part.inputs.dtype))
        labels = _Writer(group.create_dataset("labels", (part.count, *part.label_shape), part.label_dtype))
        takers = [images, statistics] if name == "train" else [images]
        group.attrs["checksum"] = read_part(part, progress, None, takers, [labels], "writing")
        if name == "train":
            written = statistics.finish()
            file.attrs["mean"], file.attrs["std"] = written.mean, written.std
            file.attrs["checksum"] = metadata_checksum(content.classes, written)
            file.create_dataset("mean_image", data=written.mean_image)


class _Writer:
    """Writes blocks one after another to an array of a file."""

    def __init__(self, array):
        self._array, self._start = array, 0

    def add(self, block) -> None:
        self._array[self._start : self._start + len(block)] = block
        self._start += len(block)
