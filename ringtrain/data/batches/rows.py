"""Reads the rows of a batch: from arrays at once, or image by image in several threads, transformed."""

from concurrent.futures import ThreadPoolExecutor

from ringtrain.data.batches.pictures import PictureSplit
from ringtrain.data.batches.transforms import Transform
from ringtrain.data.split import Shape, Split

# A batch is cut into so many parts a thread, so that threads end together, of so many images at most: a part costs half
# as much as an image of an array.
PARTS, AT_A_TIME = 16, 8


class RowReader:
    """Reads examples of a split. ``transform``: what training does to each image, by (``seed``, epoch, example); None:
    images are as evaluations see them. Decoding and resizing release the interpreter, so threads work side by side."""

    def __init__(self, split: Split, transform: Transform | None, seed: int):
        self._split, self._transform, self._seed = split, transform, seed
        threads = split.threads if isinstance(split, PictureSplit) else 1
        self._parts = PARTS * threads
        self._pool = ThreadPoolExecutor(threads, "images") if threads > 1 else None

    @property
    def shape(self) -> Shape:
        """[H, W, C] of the rows."""
        if self._transform is None or not isinstance(self._split, PictureSplit):
            return self._split.shape
        return *self._transform.size(self._split.shape), self._split.shape[2]

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
        if self._transform is None or not isinstance(self._split, PictureSplit):
            self._split.read(examples, images, labels)
            return
        for row, example in enumerate(examples.tolist()):
            self._transform.into(self._split, example, self._seed, epoch, images[row])
        self._split.read_labels(examples, labels)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
