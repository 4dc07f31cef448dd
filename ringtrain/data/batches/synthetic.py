"""Random images, to measure speed without a data set."""

import numpy as np

from ringtrain.data.batches import keys
from ringtrain.data.content import MOST_CLASSES, memory_part, no_progress
from ringtrain.data.file.contents import read_part
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.file.statistics import pixel_statistics
from ringtrain.data.split import ArraySplit
from ringtrain.data.stored.base import MemoryArray
from ringtrain.errors import DataError


def synthetic(shape, classes: int | None, count: int, seed: int, label_shape=(), most: int = 255) -> DataSet:
    """Make ``count`` random inputs of ``shape``, of bytes up to ``most``, with random labels of ``label_shape``, and no
    test split: the same for a seed on every rank. With ``count`` the size of a batch, every iteration trains on the
    same batch. ``classes``: of class numbers; None: labels are values from 0 to 1.

    Raises: DataError if the classes exceed a data set's maximum, or the memory.
    """
    if classes is not None and classes > MOST_CLASSES:
        raise DataError(f"synthetic data in {classes:,} classes: at most {MOST_CLASSES:,}, as in a data set")
    try:
        images, labels = _images((count, *shape), seed, most), _labels((count, *label_shape), classes, seed)
    except (MemoryError, ValueError) as error:
        shown = "x".join(map(str, (count, *shape)))
        raise DataError(f"synthetic data of {shown} takes more memory than there is: use a smaller --batch") from error
    for array in (images, labels):
        array.flags.writeable = False
    rows = MemoryArray(images.reshape(count, 1, -1, shape[-1]))  # whose statistics are of each place of the last axis
    statistics = pixel_statistics(rows)
    sealed = memory_part(images, labels.view(np.int32))  # values are summed as whole numbers
    return DataSet(
        name="synthetic",
        train=ArraySplit(images, labels, read_part(sealed, no_progress)),
        test=None,
        classes=tuple(str(number) for number in range(classes or 0)),
        mean=statistics.mean,
        std=statistics.std,
        mean_image=statistics.mean_image.reshape(shape),
        source=f"random numbers, seed {seed}",
        label_moments=None if classes is not None else np.array([[1 / 2], [12**-0.5]]),
    )


def _words(count: int, seed: int, purpose: int):
    return keys.hashes(keys.make_key(keys.SYNTHETIC, seed, purpose), np.arange(count, dtype=np.int64))


def _images(shape, seed: int, most: int):
    nbytes = int(np.prod(shape))
    drawn = _words(-(-nbytes // 8), seed, 0).astype("<u8", copy=False).view(np.uint8)[:nbytes].reshape(shape)
    return drawn if most == 255 else drawn % np.uint8(most + 1)


def _labels(shape, classes: int | None, seed: int):
    words = _words(int(np.prod(shape)), seed, 1).reshape(shape)
    if classes is None:
        return (words >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    return (words % np.uint64(classes)).astype(np.int32)
