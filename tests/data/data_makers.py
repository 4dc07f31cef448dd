"""Tiny data sets for the tests of the data room."""

import itertools

import h5py
import numpy as np

from ringtrain.data.batches.batches import Batches
from ringtrain.data.batches.gather import Changes, Gather
from ringtrain.data.batches.sampler import EvenParts
from ringtrain.data.content import Content, memory_part
from ringtrain.data.file.write import write_dataset
from ringtrain.data.split import ArraySplit
from ringtrain.storage import hdf5


def part(count, shape=(4, 5, 3), classes=3, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, *shape), np.uint8)
    return memory_part(images, random.integers(0, classes, count).astype(np.int32))


def content(train=12, test=5, shape=(4, 5, 3), classes=3):
    names = tuple(f"class {number}" for number in range(classes))
    tested = part(test, shape, classes, seed=1) if test else None
    return Content("tiny", part(train, shape, classes), tested, names, "made up")


def split(count, shape=(4, 5, 3), classes=3):
    examples = part(count, shape, classes)
    return ArraySplit(examples.inputs.array, examples.labels.array, "0" * 64)


def indices(sampler, iteration):
    """The examples of a global batch."""
    epoch, start, stop = sampler.place(iteration)
    return sampler.order(epoch)[start:stop]


def read_rows(split, examples):
    """(inputs, labels) of examples, as batches get them."""
    examples = np.asarray(examples, np.int64)
    images = np.empty((examples.size, *split.shape), split.dtype)
    labels = np.empty((examples.size, *split.label_shape), split.label_dtype)
    split.read(examples, images, labels)
    return images, labels


def make_batches(examples, sampler, rank=0, size=1, grain=1, augment=None, seed=0, start=0, stop=None, **how):
    """The parts of one rank, without end if ``stop`` is None."""
    iterations = itertools.count(start) if stop is None else range(start, stop)
    gather = Gather(examples, sampler, EvenParts(size, grain), Changes(augment=augment), seed)
    return Batches(gather, ((iteration, rank) for iteration in iterations), **how)


def write_packed(path, content):
    """Write a data set, with images that are compressed in blocks of rows."""
    write_dataset(path, content)
    with h5py.File(path, "r+") as file:
        for group in (file[name] for name in ("train", "test")):
            images = group.pop("images")[...]
            chunks = (min(512, len(images)), *images.shape[1:])
            group.create_dataset("images", data=images, chunks=chunks, compression="gzip")


def spoil_heap(data, damage):
    """Change the last heap of texts in the bytes of an HDF5 file so that the library would read it for ever; where."""
    heap = data.rindex(hdf5.HEAP)
    first = offset = heap + hdf5.HEAP_HEAD
    while data[offset : offset + 2] != b"\0\0":  # the free space is the last object, of index 0
        offset += hdf5.HEAP_HEAD + -(-int.from_bytes(data[offset + 8 : offset + 16], "little") // 8) * 8
    at, size = {"first length": (first + 8, 2**64 - 16), "free space": (offset + 8, 0)}[damage]
    data[at : at + 8] = size.to_bytes(8, "little")
    return heap
