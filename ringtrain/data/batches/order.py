"""The order of an epoch's examples: of the whole set, or of a window at a time.

**full**: one permutation of all examples. **blocks**: for sets that are read from files. Blocks of consecutive
examples, in a permuted order, form windows; the examples of a window are permuted. So what is read is near, at any
time: one window. **file**: as they lie, for evaluation, in windows too.

    blocks      012 345 678 9           10 examples, blocks of 3, windows of 2 blocks
    windows     678 012 | 9 345         blocks by the key (seed, epoch)
    order       1 8 0 6 2 7 | 4 9 5 3   examples by the key (seed, epoch, window)

Each is a pure function of (seed, epoch): a place in the epoch is found without those before it.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ringtrain.data.batches import keys

BLOCK_BYTES = 1 << 20
WINDOW_BYTES = 128 << 20
FULL_BYTES = 4 << 30  # of a set's inputs: up to this size the whole set is permuted unless told otherwise
KEPT_WINDOWS = 3
FULL, BLOCKS = "full", "blocks"

Span = tuple[int, int]  # consecutive examples


@dataclass(frozen=True, slots=True)
class Windows:
    """The division of ``count`` examples: blocks of ``block`` examples, windows of ``group`` blocks."""

    count: int
    block: int
    group: int

    @classmethod
    def of(cls, count: int, row_bytes: int) -> "Windows":
        """Return the division of a set by the bytes of one stored input, and by nothing else."""
        block = max(1, BLOCK_BYTES // max(1, row_bytes))
        return cls(count, block, max(1, WINDOW_BYTES // max(1, block * row_bytes)))

    @property
    def blocks(self) -> int:
        return -(-self.count // self.block)

    @property
    def windows(self) -> int:
        return -(-self.blocks // self.group)

    def size(self, numbers) -> int:
        """Return the number of examples of these blocks: the last one of the set may be short."""
        short = self.blocks * self.block - self.count
        return len(numbers) * self.block - (short if self.blocks - 1 in numbers else 0)

    def span(self, number: int) -> Span:
        """Return (start, stop): the examples of a block."""
        return number * self.block, min((number + 1) * self.block, self.count)


class EpochWindows:
    """One epoch's blocks, by window, and where its windows begin. ``key``: None keeps the file's order."""

    def __init__(self, windows: Windows, key: tuple[int, int] | None):
        self._windows, self._key = windows, key
        block_count = windows.blocks
        self._blocks = np.arange(block_count) if key is None else keys.permutation(_key(key), block_count)
        sizes = [windows.size(self._numbers(window)) for window in range(windows.windows)]
        self.starts = np.cumsum([0, *sizes])
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()

    def _numbers(self, window: int):
        return self._blocks[window * self._windows.group : (window + 1) * self._windows.group]

    def spans(self, window: int) -> list[Span]:
        """Return the blocks of a window."""
        return [self._windows.span(int(number)) for number in self._numbers(window)]

    def window_of(self, position: int) -> int:
        """Return the window of a place in the epoch."""
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def examples(self, start: int, stop: int) -> np.ndarray:
        """Return the examples at places ``start:stop``. Shapes: → int64 [n]"""
        if self._key is None:
            return np.arange(start, stop)
        pieces = []
        while start < stop:
            window = self.window_of(start)
            first, last = int(self.starts[window]), min(stop, int(self.starts[window + 1]))
            pieces.append(self._window(window)[start - first : last - first])
            start = last
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]

    def _window(self, window: int) -> np.ndarray:
        assert self._key is not None
        if window not in self._kept:
            near = np.concatenate([np.arange(start, stop) for start, stop in self.spans(window)])
            near.sort()
            self._kept[window] = near[keys.permutation(_key((*self._key, window)), near.size)]
            while len(self._kept) > KEPT_WINDOWS:
                self._kept.popitem(last=False)
        return self._kept[window]


def _key(values) -> int:
    return keys.make_key(keys.BLOCKS, *values)
