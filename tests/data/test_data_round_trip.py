"""Arrays of every shape and type that are read, through `data make`, `data check` and opening: one checksum, the same
values, in memory and streamed."""

import itertools
from functools import cache

import numpy as np
import pytest

from ringtrain.data.content import Content, memory_part
from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset, read_form
from ringtrain.data.file.write import write_dataset
from ringtrain.data.readers.make import make_dataset
from tests.data.data_makers import read_rows

COUNT = 6
TYPES = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
BIG_ENDIAN = (">i2", ">f4")
READ_AS = {"uint8": np.uint8, "float64": np.float64}  # all others: float32
SHAPES = ((3,), (4, 3), (2, 4, 3), (2, 3, 2, 2))
LABELS = {
    "classes": np.array([0, 1, 2, -1, 1, 0]),
    "a column of classes": np.array([[0], [1], [2], [-1], [1], [0]], np.int16),
    "dense": np.resize(np.arange(3), (COUNT, 2, 2)).astype(np.uint8),
    "values": np.linspace(-1, 1, COUNT, dtype=np.float32),
    "vectors": np.linspace(-1, 1, 3 * COUNT).reshape(COUNT, 3),
}
# Each type and shape with class numbers, each shape and form of labels with two types.
FEW = list(itertools.product(("uint8", "float32"), SHAPES))
CASES = [
    (each, "classes", channel) for each in itertools.product(TYPES + BIG_ENDIAN, SHAPES) for channel in (False, True)
]
CASES += [(each, labels, True) for each, labels in itertools.product(FEW, LABELS) if labels != "classes"]


def make_set(folder, dtype, shape, labels):
    """(--data of an archive, its inputs)"""
    values = np.random.default_rng(3).integers(0, 100, (COUNT, *shape)).astype(dtype)
    np.savez(folder / "a.npz", x_train=values, y_train=LABELS[labels], x_test=values[::-1], y_test=LABELS[labels])
    make_dataset(folder / "a.npz", folder / "a.h5")
    return folder / "a.npz", values


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """made(), once for each case."""
    return cache(lambda *case: make_set(tmp_path_factory.mktemp("set"), *case))


@pytest.mark.parametrize(("inputs", "labels", "channel"), CASES, ids=str)
def test_what_is_made_is_good_and_is_read_as_the_source_is(sets, inputs, labels, channel):
    """``channel``: the network has an axis of one channel beside those of the inputs."""
    (dtype, shape), extents = inputs, min(4, len(inputs[1]) + channel)
    source, values = sets(dtype, shape, labels)
    path = source.with_suffix(".h5")
    assert check_file(path) == []
    wanted = open_dataset(source, extents=extents)
    read = (*shape, 1) if len(shape) < extents else shape
    assert wanted.train.shape == read and wanted.train.dtype == READ_AS.get(dtype, np.float32)
    for most_bytes in (None, 0):
        opened = open_dataset(path, extents=extents, most_bytes=most_bytes)
        assert opened.train.shape == (*shape, 1) if len(shape) == 2 else read
        for (_, split), (_, other) in zip(opened.splits(), wanted.splits(), strict=True):
            for example in range(COUNT):
                assert (split.image(example).reshape(read) == other.image(example)).all()
        assert (opened.train.image(2).reshape(shape) == values[2]).all()
        images, _ = read_rows(opened.train, [5, 0, 3])
        assert (images.reshape(3, *shape) == values[[5, 0, 3]]).all()
        if len(shape) != 2 or channel:  # made of [N, H, W] are images of one channel; for a sequence W has the channels
            assert opened.checksum == wanted.checksum
            wide, axes = values.reshape(-1, *read).astype(np.float64), tuple(range(len(read)))
            assert np.allclose(opened.mean, wide.mean(axes), rtol=1e-12) and opened.mean_image.shape == read
            assert np.allclose(opened.mean_image, wide.mean(0), rtol=1e-6)
            assert np.allclose(opened.std, wide.std(axes), rtol=1e-12)
    assert read_form(path, None, extents).train.shape == opened.train.shape


def test_a_file_of_images_without_an_axis_of_channels_is_summed_as_it_is_stored(tmp_path):
    values = np.random.default_rng(3).integers(0, 100, (COUNT, 4, 5)).astype(np.uint8)
    part = memory_part(values, LABELS["classes"].astype(np.int32))
    write_dataset(tmp_path / "a.h5", Content("made", part, None, ("a", "b", "c"), "made"))
    assert check_file(tmp_path / "a.h5") == []
    for extents, shape in ((None, (4, 5, 1)), (3, (4, 5, 1)), (2, (4, 5))):
        opened = open_dataset(tmp_path / "a.h5", extents=extents)
        assert opened.train.shape == opened.mean_image.shape == shape and opened.mean.shape == shape[-1:]
