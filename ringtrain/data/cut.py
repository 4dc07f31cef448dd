"""A test part cut out of the training part, for sources that have none."""

import dataclasses
import math

import numpy as np

from ringtrain.data import keys, texts
from ringtrain.data.content import Content, Part
from ringtrain.errors import DataError


def cut_test(content: Content, fraction: float, seed: int) -> Content:
    """The same data set, with ceil(fraction · N) of its examples as the test part.

    Which they are depends on seed and N alone, not on labels; both parts keep the order of the source.
    Raises: DataError where there is a test part already, or nothing would be left of one of the two.
    """
    if content.test is not None:
        raise DataError(texts.TEST_PART_EXISTS(name=content.name, count=content.test.count))
    count = content.train.count
    if not 0 < fraction < 1 or math.ceil(fraction * count) >= count:
        raise DataError(texts.FRACTION_LEAVES_NONE(fraction=fraction, count=count))
    order = keys.permutation(keys.mix(keys.SPLIT, seed), count)
    cut = math.ceil(fraction * count)
    return dataclasses.replace(content, train=_take(content.train, order[cut:]), test=_take(content.train, order[:cut]))


def _take(part: Part, examples) -> Part:
    examples = np.sort(examples)
    return Part(part.images[examples], part.labels[examples])
