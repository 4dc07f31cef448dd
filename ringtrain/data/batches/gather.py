"""One rank's part of one batch, gathered into reused memory: no iteration allocates an array."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtrain.data.batches import keys
from ringtrain.data.batches.augment import Augment
from ringtrain.data.batches.mixing import Erasing, Mix, Mixing, partners
from ringtrain.data.batches.pictures import PictureSplit
from ringtrain.data.batches.readahead import WindowOrder
from ringtrain.data.batches.sampler import EvenParts, Sampler, ShardParts
from ringtrain.data.batches.transforms import Transform
from ringtrain.data.split import Shape, Split

# A batch is cut into so many parts a thread, so that threads end together, of so many images at most: a part costs half
# as much as an image of an array.
PARTS, AT_A_TIME = 16, 8


@dataclass(frozen=True, slots=True)
class Batch:
    """A rank's part of a global batch; n may be 0 in a tail.

    Shapes: examples int64 [n]; images [n, ...] and labels [n, ...] of the split's shapes and types; top and left int32
    [n], flip uint8 [n]; erase int32 [n, 4]: top, left, height and width of a box of the network's input, which becomes
    0; [n, 0] if none is.
    mix: how each example is mixed with the example of ``partner`` in the same row; None: not at all.
    Units: total counts examples of all ranks, valid_total their labelled elements: class numbers other than -1
    (ignore), or values.
    """

    iteration: int
    epoch: int
    total: int
    valid_total: int
    examples: np.ndarray
    images: np.ndarray
    labels: np.ndarray
    top: np.ndarray
    left: np.ndarray
    flip: np.ndarray
    erase: np.ndarray
    mix: Mix | None = None
    partner: "Batch | None" = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What is done to examples, in this order; None: nothing."""

    transform: Transform | None = None
    augment: Augment | None = None
    erasing: Erasing | None = None
    mixing: Mixing | None = None


class BatchSlot:
    """The memory of one batch of up to ``capacity`` examples of a split, in rows of ``shape``. ``allocate(shape,
    dtype)`` makes its arrays; ``erased``: boxes of examples are; ``mixed``: partners have such memory too."""

    def __init__(
        self, capacity: int, split: Split, shape: Shape, allocate=np.empty, erased: bool = False, mixed: bool = False
    ):
        self.partner = BatchSlot(capacity, split, shape, allocate, erased) if mixed else None
        self._arrays = {
            "examples": allocate((capacity,), np.int64),
            "images": allocate((capacity, *shape), split.dtype),
            "labels": allocate((capacity, *split.label_shape), split.label_dtype),
            "top": allocate((capacity,), np.int32),
            "left": allocate((capacity,), np.int32),
            "flip": allocate((capacity,), np.uint8),
            "erase": allocate((capacity, 4), np.int32) if erased else np.empty((capacity, 0), np.int32),
        }

    def batch(self, n: int, **about) -> Batch:
        """Return views of the first ``n`` examples."""
        return Batch(**{name: array[:n] for name, array in self._arrays.items()}, **about)


class RowReader:
    """Reads examples of a split. ``transform``: what training does to each image, by (``seed``, epoch, example); None:
    images are as evaluations see them. Decoding and resizing release the interpreter, so threads work side by side."""

    def __init__(self, split: Split, transform: Transform | None, seed: int):
        self._split: Any = split
        self._transform, self._seed = transform if isinstance(split, PictureSplit) else None, seed
        self.shape = split.shape  # [H, W, C] of the rows
        if self._transform is not None:
            self.shape = *self._transform.size(split.shape), split.shape[2]
        threads = split.threads if isinstance(split, PictureSplit) else 1
        self._parts = PARTS * threads
        self._pool = ThreadPoolExecutor(threads, "images") if threads > 1 else None

    def read(self, epoch: int, examples, images, labels) -> None:
        """Read examples of an epoch. Shapes: int64 [n], images [n, ...], labels [n, ...]"""
        if self._pool is None:
            self._read(epoch, examples, images, labels)
            return
        each = max(1, min(AT_A_TIME, examples.size // self._parts))
        parts = [slice(start, start + each) for start in range(0, examples.size, each)]
        reads = [self._pool.submit(self._read, epoch, examples[i], images[i], labels[i]) for i in parts]
        for read in reads:  # before the first error ends the batch, the others end: they write to its arrays
            read.exception()
        for read in reads:
            read.result()

    def _read(self, epoch: int, examples, images, labels) -> None:
        if self._transform is None:
            self._split.read(examples, images, labels)
            return
        into, rows = self._transform.into, zip(examples.tolist(), images, strict=True)
        shown = [into(self._split, example, self._seed, epoch, image) for example, image in rows]
        self._split.read_labels(np.array(shown, np.int64), labels)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


class Gather:
    """Fill slots with parts of iterations, as ``division`` cuts them, one call at a time. ``seed`` keys the
    changes, the sampler's own seed the order."""

    def __init__(
        self, split: Split, sampler: Sampler, division: EvenParts | ShardParts, changes: Changes, seed: int = 0
    ):
        if sampler.count != split.count:
            raise ValueError(f"a sampler of {sampler.count} examples for a split of {split.count}")
        self._split, self._sampler = split, sampler
        self._division, self._seed = division, seed
        self._rows = RowReader(split, changes.transform, seed)
        self._augment, self._erasing, self._mixing = changes.augment, changes.erasing, changes.mixing or Mixing()
        if self._augment is not None:
            self._augment.check(self._rows.shape)
        self._order = WindowOrder(split, sampler) if sampler.windows else _WholeEpoch(sampler)
        self._draw_scratch = np.empty((2, self.capacity), np.uint64)

    @property
    def capacity(self) -> int:
        """The number of examples of the largest part."""
        return self._division.largest(self._sampler.batch)

    def slot(self, allocate=np.empty) -> BatchSlot:
        """Make a slot that holds any part."""
        erased, mixed = self._erasing is not None, bool(self._mixing)
        return BatchSlot(self.capacity, self._split, self._rows.shape, allocate, erased, mixed)

    def fill(self, slot: BatchSlot, iteration: int, part: int | None) -> Batch:
        """Gather a part of an iteration into the slot. ``part`` None: no examples, for an iteration of other ranks'
        examples."""
        epoch, start, stop = self._sampler.place(iteration)
        everyone = self._order.examples(epoch, start, stop)
        mine = slice(*((0, 0) if part is None else self._division.cut(everyone.size, part)))
        about: dict[str, Any] = {"iteration": iteration, "epoch": epoch, "total": everyone.size}
        about["valid_total"] = self._split.valid(everyone)
        if slot.partner is not None:
            others = everyone[partners(everyone.size, self._seed, iteration)[mine]]
            about["partner"] = self._filled(slot.partner.batch(others.size, **about), others)
            about["mix"] = self._mixing.draw(*self._size, self._seed, iteration)
        return self._filled(slot.batch(mine.stop - mine.start, **about), everyone[mine])

    @property
    def _size(self) -> tuple[int, int]:
        assert self._augment is not None, "images alone are mixed and erased"
        return self._augment.size

    def _filled(self, batch: Batch, examples) -> Batch:
        """The batch, with these examples in its memory."""
        np.copyto(batch.examples, examples)
        self._rows.read(batch.epoch, batch.examples, batch.images, batch.labels)
        if self._augment is not None:
            self._augment.draw(self._rows.shape, self._seed, batch.epoch, batch, self._draw_scratch)
        else:
            for array in (batch.top, batch.left, batch.flip):
                array.fill(0)
        if self._erasing is not None:
            self._erasing.draw(*self._size, self._seed, batch.epoch, batch.examples, batch.erase)
        return batch

    def close(self) -> None:
        self._rows.close()


class _WholeEpoch:
    """The order of one epoch, kept whole."""

    def __init__(self, sampler: Sampler):
        self._sampler, self._epoch = sampler, -1
        self._order = np.empty(sampler.count, np.int64)
        self._scratch = np.empty(min(sampler.count, keys.BLOCK), np.uint64)

    def examples(self, epoch: int, start: int, stop: int) -> np.ndarray:
        if epoch != self._epoch:
            self._sampler.order(epoch, self._order, self._scratch)
            self._epoch = epoch
        return self._order[start:stop]
