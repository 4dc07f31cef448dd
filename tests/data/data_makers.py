"""Tiny data sets for the tests of the data room."""

import numpy as np

from ringtrain.data.content import Content, Part
from ringtrain.data.split import ArraySplit


def part(count, shape=(4, 5, 3), classes=3, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, *shape), np.uint8)
    return Part(images, random.integers(0, classes, count).astype(np.int32))


def content(train=12, test=5, shape=(4, 5, 3), classes=3):
    names = tuple(f"class {number}" for number in range(classes))
    tested = part(test, shape, classes, seed=1) if test else None
    return Content("tiny", part(train, shape, classes), tested, names, "made up", "CC0")


def split(count, shape=(4, 5, 3), classes=3):
    made = part(count, shape, classes)
    return ArraySplit(made.images, made.labels, "0" * 64)
