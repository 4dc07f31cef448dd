"""Random images, to measure speed without a data set."""

import numpy as np

from ringtrain.data import texts
from ringtrain.data.batches import keys
from ringtrain.data.content import MOST_CLASSES, Part, checksum
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.file.statistics import pixel_statistics
from ringtrain.data.split import ArraySplit
from ringtrain.errors import DataError


def synthetic(shape, classes: int, count: int, seed: int) -> DataSet:
    """Make ``count`` random images of [H, W, C] = ``shape`` with random labels, and no test split: the same for a
    seed on every rank. With ``count`` the size of a batch, every iteration trains on the same batch.

    Raises: DataError if a number is below 1, or the classes exceed a data set's maximum.
    """
    if classes > MOST_CLASSES:
        raise DataError(texts.SYNTHETIC_CLASSES(classes=classes, most=MOST_CLASSES))
    if min(*shape, classes, count) < 1:
        raise DataError(texts.SYNTHETIC_NONE(count=count, shape="x".join(map(str, shape)), classes=classes))
    try:
        part = Part(_images((count, *shape), seed), _labels(count, classes, seed))
    except (MemoryError, ValueError) as error:
        shown = "x".join(map(str, (count, *shape)))
        raise DataError(texts.SYNTHETIC_TOO_LARGE(shape=shown)) from error
    for array in (part.images, part.labels):
        array.flags.writeable = False
    statistics = pixel_statistics(part.images)
    return DataSet(
        name="synthetic",
        train=ArraySplit(part.images, part.labels, checksum(part)),
        test=None,
        classes=tuple(str(number) for number in range(classes)),
        mean=statistics.mean,
        std=statistics.std,
        mean_image=statistics.mean_image,
        source=f"random numbers, seed {seed}",
        licence="none needed",
    )


def _words(count: int, seed: int, purpose: int):
    return keys.hashes(keys.make_key(keys.SYNTHETIC, seed, purpose), np.arange(count, dtype=np.int64))


def _images(shape, seed: int):
    nbytes = int(np.prod(shape))
    return _words(-(-nbytes // 8), seed, 0).astype("<u8", copy=False).view(np.uint8)[:nbytes].reshape(shape)


def _labels(count: int, classes: int, seed: int):
    return (_words(count, seed, 1) % np.uint64(classes)).astype(np.int32)
