"""Each rank's examples of a batch, and its micro-batches; scatters them if one rank reads whole batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.data.batches.sampler import ShardParts, batch_part
from ringtrain.exchange.base import Cut, Exchange

PER_EXAMPLE = ("examples", "images", "labels", "top", "left", "flip", "erase")


@dataclass(frozen=True, slots=True)
class RankBatch:
    """This rank's part of a global batch."""

    batch: Batch
    micro: list[Cut]  # its micro-batches, (start, stop)
    following: Callable[[], Batch | None]  # () → the next batch, or None if it is not known yet


def example_arrays(batch: Batch) -> dict[str, Any]:
    """The arrays of a batch that have one row an example, by name; without rows of nothing."""
    return {name: array for name in PER_EXAMPLE if (array := getattr(batch, name)).shape[1:] != (0,)}


def with_rows(batch: Batch, change: Callable[[np.ndarray], np.ndarray]) -> Batch:
    """The same batch with other rows in each array, its own and its partner's."""
    arrays: dict[str, Any] = {name: change(array) for name, array in example_arrays(batch).items()}
    partner = None if batch.partner is None else with_rows(batch.partner, change)
    return replace(batch, partner=partner, **arrays)


def blank_batch(batch: Batch, count: int) -> Batch:
    return with_rows(batch, lambda array: np.zeros((count, *array.shape[1:]), array.dtype))


def micro_batches(count: int, most: int, grain: int, empty: bool = False) -> list[Cut]:
    """A rank's ``count`` examples cut into at most ``most`` micro-batches of whole grains; ``empty``: into exactly as
    many, some of them perhaps without examples."""
    cuts = [batch_part(count, micro, most, grain) for micro in range(most)]
    return [(start, stop) for start, stop in cuts if stop > start or empty]


class BatchPartition:
    """grain:      examples that must stay on one rank
    accumulate: micro-batches of an iteration
    shards:     this rank's shards of the batch, each a micro-batch; None if the rank has one part of it
    """

    def __init__(self, exchange: Exchange, rank: int, grain: int, accumulate: int, shards: ShardParts | None = None):
        self._exchange, self._rank, self._grain, self._accumulate = exchange, rank, grain, accumulate
        self.shards = shards
        self._roles = exchange.facts.roles

    @property
    def scattered(self) -> bool:
        """Whether one rank reads for all, and for this one."""
        return self._roles.loader is not None and self._rank in self._roles.trainers

    def own(self, batch: Batch) -> Batch:
        """This rank's part of a batch. Collective if one rank reads for all."""
        if not self.scattered:
            return batch
        return replace(batch, **self._exchange.batches.scatter(example_arrays(batch), self._cuts(batch.total)))

    def blank(self, batch: Batch) -> Batch:
        """A batch of the size of this rank's part, of zeros if another rank has read it. Not collective."""
        if not self.scattered:
            return batch
        return blank_batch(batch, sum(stop - start for start, stop in self._cuts(batch.total)[self._rank]))

    def micro(self, batch: Batch, empty: bool) -> list[Cut]:
        """The micro-batches of this rank's part; ``empty``: also those without examples."""
        count = len(batch.labels)
        if self.shards:  # the memory trial's batch of one example has fewer than its total
            return [(min(start, count), min(stop, count)) for start, stop in self.shards.within(batch.total)]
        return micro_batches(count, self._accumulate, self._grain, empty)

    def _cuts(self, total: int) -> dict[int, list[Cut]]:
        """The micro-batches of each trainer in a batch of ``total``; also those without examples, if their passes are
        made."""
        cuts, empty = {}, self._exchange.facts.within_passes
        for part, rank in enumerate(self._roles.trainers):
            start, stop = batch_part(total, part, len(self._roles.trainers), self._grain)
            micros = micro_batches(stop - start, self._accumulate, self._grain, empty)
            cuts[rank] = [(start + a, start + b) for a, b in micros]
        return cuts
