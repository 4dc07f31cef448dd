"""The way from a source to a file: `ringtrain data make`."""

import dataclasses
import math
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.data.batches import keys
from ringtrain.data.content import Content, Part, Progress, no_progress
from ringtrain.data.file.format import TEXTS
from ringtrain.data.file.grammar import AS_STORED, Layout
from ringtrain.data.file.write import check_target, write_dataset
from ringtrain.data.readers.sources import Size, read_source
from ringtrain.data.stored.base import ChosenRows
from ringtrain.errors import DataError
from ringtrain.storage import hdf5

TEXT_TEST_FRACTION = 0.1  # unless given


def split_test(content: Content, fraction: float, seed: int) -> Content:
    """Return the same data set, with ceil(fraction · N) of its examples as the test part.

    Seed and N alone select them, not labels; of examples in order they are the last. Both parts keep the order of the
    source.
    Raises: DataError if a test part exists already, or one of the two would be empty.
    """
    if content.test is not None:
        raise DataError(
            f"{content.name} already has a test part of {content.test.count} examples: leave out --test-fraction"
        )
    count = content.train.count
    if not 0 < fraction < 1 or math.ceil(fraction * count) >= count:
        raise DataError(
            f"--test-fraction {fraction} of {count} examples leaves none for training or none for testing: give a "
            "number between 0 and 1"
        )
    order = np.arange(count)[::-1]
    if not content.in_order:
        order = keys.permutation(keys.make_key(keys.SPLIT, seed), count)
    cut = math.ceil(fraction * count)
    return dataclasses.replace(content, train=_take(content.train, order[cut:]), test=_take(content.train, order[:cut]))


def _take(part: Part, examples) -> Part:
    examples = np.sort(examples)
    labels = ChosenRows(part.labels, examples) if part.labels is not None else None
    return Part(ChosenRows(part.inputs, examples), labels)


def make_dataset(
    source,
    out,
    name: str | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    size: Size | None = None,
    context: int | None = None,
    layout: Layout = AS_STORED,
    force: bool = False,
    progress: Progress = no_progress,
) -> Content:
    """Read ``source``, split off a test part if asked, write ``out``, and return the content. Sources in files that can
    be read by rows are never in memory as a whole.

    Raises: DataError, before the long work if possible.
    """
    check_target(Path(out), force)
    content = read_source(source, size, progress, context, layout)
    shapes = [part.inputs.shape[1:] for _, part in content.parts()]
    if len(set(shapes)) > 1:
        raise DataError(texts.SHAPES_DIFFER.format(name=content.name, test=shapes[1], train=shapes[0]))
    if not content.classes and not content.train.of_values:
        raise DataError(
            f"{source}: there are no classes: all labels are -1 (none); give labels from 0, the number of each class"
        )
    content = content if name is None else dataclasses.replace(content, name=name)
    _check_texts(str(source), content)
    if content.in_order and test_fraction is None:
        test_fraction = TEXT_TEST_FRACTION
    if test_fraction is not None:
        content = split_test(content, test_fraction, seed)
    write_dataset(out, content, force, progress=progress)
    return content


def _check_texts(source: str, content: Content) -> None:
    """Check that names are text that the HDF5 file's reader accepts; the name of a file can be any bytes."""
    fields = [(key, getattr(content, key)) for key in TEXTS]
    for what, text in (*fields, *((f"class {i}", name) for i, name in enumerate(content.classes))):
        if not hdf5.is_text(text):
            raise DataError(f"{source}: {what} is {text!r}, which is not printable text: give it another name")
