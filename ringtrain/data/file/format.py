"""The HDF5 file of a data set: its layout, in one place, and how it is written.

/                 format="ringtrain-dataset" version=1 name source licence (text)
                  classes (list of text)  mean std (float64 [C], of the training images, 0 … 255)
                  checksum (sha256 in hexadecimal, of classes, mean, std and mean_image; see metadata.py; may be absent)
/mean_image       float32 [H, W, C], of the training images
/train, /test     checksum (sha256 in hexadecimal; see content.Checksum); /test may be absent
    images        uint8 [N, H, W, C]
    labels        int32 [N], -1 where an example has none
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from ringtrain.data import texts
from ringtrain.data.content import Content, Part, Progress, checksum, no_progress, row_blocks
from ringtrain.data.file.contents import label_problems
from ringtrain.data.file.dataset import hdf5_errors, open_hdf5
from ringtrain.data.file.layout import FORMAT, VERSION, layout_problems
from ringtrain.data.file.metadata import metadata_checksum, read_metadata, seal_problems
from ringtrain.data.file.statistics import pixel_statistics
from ringtrain.errors import DataError

# More classes than fit a 64 KiB attribute need HDF5 1.8; version 1.10 reads these files.
LIBVER = ("v108", "v110")
CHUNK_ROWS = 512


def check_target(path: Path, force: bool) -> None:
    """Check, before any work, that ``path`` can be written. Raises: DataError"""
    if path.is_dir():
        raise DataError(texts.TARGET_FOLDER(path=path))
    if path.exists() and not force:
        raise DataError(texts.TARGET_EXISTS(path=path))
    if not path.parent.is_dir():
        raise DataError(texts.TARGET_NO_FOLDER(path=path, folder=path.parent))
    if not os.access(path.parent, os.W_OK):
        raise DataError(texts.TARGET_READ_ONLY(path=path, folder=path.parent))


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
        with h5py.File(aside, "x", libver=LIBVER) as file:
            _write(file, content, compress, progress)
        _check_written(path, aside)
        _sync(aside)
        os.replace(aside, path)
        _sync(path.parent)
    except OSError as error:
        raise DataError(texts.TARGET_NOT_WRITTEN(path=path, error=error)) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


def _check_written(path: Path, aside: Path) -> None:
    """Check all that opening checks, except the examples' checksums, which need the images."""
    with open_hdf5(aside) as file, hdf5_errors(aside):
        problem = next(_written_problems(file), None)
    if problem:
        raise DataError(texts.TARGET_UNREADABLE(path=path, problem=problem))


def _written_problems(file) -> Iterator[str]:
    yield from layout_problems(file)
    metadata = read_metadata(file)
    yield from seal_problems(file, metadata)
    for name in ("train", "test"):
        if name in file:
            yield from label_problems(name, file[name]["labels"][...], len(metadata.classes))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file, content: Content, compress: bool, progress: Progress) -> None:
    statistics = pixel_statistics(content.train.images, progress)
    file.attrs["format"] = FORMAT
    file.attrs["version"] = VERSION
    for key in ("name", "source", "licence"):
        file.attrs[key] = getattr(content, key)
    file.attrs["classes"] = np.array(content.classes, dtype=h5py.string_dtype())
    file.attrs["mean"] = statistics.mean
    file.attrs["std"] = statistics.std
    file.attrs["checksum"] = metadata_checksum(content.classes, statistics)
    file.create_dataset("mean_image", data=statistics.mean_image)
    for name, part in content.parts():
        _write_part(file.create_group(name), part, compress, progress)


def _write_part(group, part: Part, compress: bool, progress: Progress) -> None:
    layout = {}
    if compress:
        rows = min(CHUNK_ROWS, part.count)
        layout = {"chunks": (rows, *part.images.shape[1:]), "compression": "gzip", "compression_opts": 9}
    images = group.create_dataset("images", part.images.shape, np.uint8, **layout)
    for rows in row_blocks(part.count, part.images[0].nbytes, CHUNK_ROWS if compress else 1):
        images[rows] = part.images[rows]
        progress("writing", rows.stop, part.count)
    group.create_dataset("labels", data=part.labels)
    group.attrs["checksum"] = checksum(part)
