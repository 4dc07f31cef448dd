"""The examples of each iteration: a pure function of (seed, epoch), so the same for any number of ranks.

An epoch is a permutation of the examples, cut into batches; its last batch (the tail) is the remainder. Ranks
divide each *global* batch among them, in order, so that more ranks never means other examples.

    order of the epoch   7 2 9 0 | 4 1 8 5 | 3 6        10 examples, batches of 4
    2 ranks              7 2·9 0 | 4 1·8 5 | 3·6
    3 ranks              7·2·9 0 | 4·1·8 5 | ·3·6       the first rank has nothing of this tail

:mod:`order` has the other order, of sets that are too large for a permutation of all examples.
"""

from dataclasses import dataclass

import numpy as np

from ringtrain.data.batches import keys
from ringtrain.data.batches.order import BLOCKS, FULL, EpochWindows, Windows
from ringtrain.errors import DataError


def batch_part(count: int, rank: int, size: int, grain: int = 1) -> tuple[int, int]:
    """Return (start, stop): the part of ``rank`` in a batch of ``count`` examples, in whole grains of ``grain``
    examples.

    Parts are contiguous, in rank order, and differ by at most one grain. The later ranks have the larger parts, since
    the last grain may be a partial one: the other way round they could differ by almost two.
    """
    grains = -(-count // grain)
    each, extra = divmod(grains, size)

    def edge(r: int) -> int:
        return min((r * each + max(0, r - (size - extra))) * grain, count)

    return edge(rank), edge(rank + 1)


def largest_part(batch: int, size: int, grain: int = 1) -> int:
    """Return the number of examples in the largest part of a batch of up to ``batch``."""
    grains = -(-batch // grain)
    return min(batch, -(-grains // size) * grain)


def shard(count: int, number: int, shards: int) -> tuple[int, int]:
    """Return (start, stop): shard ``number`` of a batch of ``count`` examples, whichever rank computes it. Shards of a
    tail may be uneven, or empty."""
    return number * count // shards, (number + 1) * count // shards


@dataclass(frozen=True, slots=True)
class EvenParts:
    """Cut batches into ``parts`` that differ by at most one grain: see :func:`batch_part`, :func:`largest_part`."""

    parts: int = 1
    grain: int = 1

    def cut(self, count: int, part: int) -> tuple[int, int]:
        return batch_part(count, part, self.parts, self.grain)

    def largest(self, batch: int) -> int:
        return largest_part(batch, self.parts, self.grain)


@dataclass(frozen=True, slots=True)
class ShardParts:
    """Cut batches into ``count`` shards. One rank has ``start:stop``: the only part that it asks for."""

    count: int
    start: int
    stop: int

    def cut(self, count: int, part: int) -> tuple[int, int]:
        """Return (start, stop) of this rank's shards in a batch of ``count`` examples."""
        return shard(count, self.start, self.count)[0], shard(count, self.stop - 1, self.count)[1]

    def within(self, count: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each of the rank's shards within its part."""
        first, _ = self.cut(count, 0)
        edges = [shard(count, number, self.count) for number in range(self.start, self.stop)]
        return [(start - first, stop - first) for start, stop in edges]

    def largest(self, batch: int) -> int:
        return -(-(self.stop - self.start) * batch // self.count)


@dataclass(frozen=True, slots=True)
class Sampler:
    """``count`` examples in global batches of ``batch``. ``shuffle=False`` takes them in file order, for evaluation.
    ``windows``: permutes blocks and then the examples of windows of them, in place of all examples at once.

    Iterations count from 0 and go on over epochs. Checkpoints keep the position as a number of examples.
    Raises: DataError if there is no example or no batch.
    """

    count: int
    batch: int
    seed: int = 0
    shuffle: bool = True
    windows: Windows | None = None

    def __post_init__(self):
        if self.count < 1:
            raise DataError(f"cannot sample from {self.count} examples: at least one is needed")
        if self.batch < 1:
            raise DataError(f"the batch is {self.batch}: it must be at least 1")

    @property
    def iterations_per_epoch(self) -> int:
        """The number of batches in an epoch, its tail included."""
        return -(-self.count // self.batch)

    @property
    def shuffled(self) -> str:
        """How an epoch is shuffled, as ``--shuffle`` names it."""
        return FULL if self.windows is None else BLOCKS

    def epoch_of(self, iteration: int) -> int:
        """Return the epoch of an iteration, from 0."""
        return iteration // self.iterations_per_epoch

    def place(self, iteration: int) -> tuple[int, int, int]:
        """Return (epoch, start, stop): the iteration's batch is these places of the epoch's order."""
        epoch, position = divmod(iteration, self.iterations_per_epoch)
        start = position * self.batch
        return epoch, start, min(start + self.batch, self.count)

    def order(self, epoch: int, out=None, scratch=None):
        """Return the epoch's examples in order. Shapes: → int64 [count]; nothing is allocated if there are no windows,
        and ``out`` and ``scratch`` (uint64, :data:`keys.BLOCK` elements) are given."""
        if self.windows is not None:
            return self.epoch_windows(epoch).examples(0, self.count)
        if self.shuffle:
            return keys.permutation(keys.make_key(keys.ORDER, self.seed, epoch), self.count, out, scratch)
        return keys.count_up(np.empty(self.count, np.int64) if out is None else out)

    def epoch_windows(self, epoch: int) -> EpochWindows:
        """Return the windows of an epoch, of a sampler that has them."""
        assert self.windows is not None
        return EpochWindows(self.windows, (self.seed, epoch) if self.shuffle else None)

    def examples_seen(self, iteration: int) -> int:
        """Return the number of examples of all earlier iterations."""
        epoch, start, _ = self.place(iteration)
        return epoch * self.count + start

    def iteration_at(self, examples_seen: int) -> int:
        """Return the iteration that follows this many examples: the inverse of :meth:`examples_seen`.

        Raises: DataError if the number lies within a batch: another batch size or data set counted it.
        """
        epoch, start = divmod(examples_seen, self.count)
        if examples_seen < 0 or start % self.batch:
            raise DataError(
                f"{examples_seen} examples seen is not between two batches of {self.batch} in epochs of {self.count}: "
                "the run had another --batch or another data set; use the same ones"
            )
        return epoch * self.iterations_per_epoch + start // self.batch
