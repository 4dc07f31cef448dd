"""Each rank's examples of a batch, and its micro-batches; scatters them where one rank reads whole batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.data.batches.sampler import ShardParts, batch_part
from ringtrain.exchange.base import Cut, Exchange

PER_EXAMPLE = ("examples", "images", "labels", "top", "left", "flip")


def no_batch() -> Batch | None:
    return None


@dataclass(frozen=True, slots=True)
class RankBatch:
    """This rank's part of a global batch.

    micro:     where its micro-batches lie, (start, stop)
    following: () → the batch after it, where that is known yet
    """

    batch: Batch
    micro: list[Cut]
    following: Callable[[], Batch | None] = no_batch


def micro_batches(count: int, most: int, grain: int, empty: bool = False) -> list[Cut]:
    """A rank's ``count`` examples cut into at most so many micro-batches, of whole grains; ``empty``: into exactly so
    many, with no examples where there are too few."""
    cuts = [batch_part(count, micro, most, grain) for micro in range(most)]
    return [(start, stop) for start, stop in cuts if stop > start or empty]


class BatchPartition:
    """exchange:   says which ranks train, and whether one of them reads for all
    size, rank: of the world
    grain:      examples that must stay on one rank
    accumulate: micro-batches of an iteration
    shards:     of the batch, each of which is a micro-batch; None where a rank has one part of it
    """

    def __init__(
        self, exchange: Exchange, size: int, rank: int, grain: int, accumulate: int, shards: ShardParts | None = None
    ):
        self._exchange, self._rank, self._grain, self._accumulate = exchange, rank, grain, accumulate
        self.shards = shards
        self._roles = exchange.facts.roles

    @property
    def read_elsewhere(self) -> bool:
        """Whether one rank reads for all."""
        return self._roles.loader is not None

    def own(self, batch: Batch) -> Batch:
        """This rank's part of a batch. Collective where one rank reads for all."""
        if self._roles.loader is None:
            return batch
        named = {name: getattr(batch, name) for name in PER_EXAMPLE}
        return replace(batch, **self._exchange.batches.scatter(named, self.cuts(batch.total)))

    def blank(self, batch: Batch) -> Batch:
        """As large as this rank's part, and without meaning where another rank has read it; nothing is exchanged."""
        if self._roles.loader is None:
            return batch
        count = sum(stop - start for start, stop in self.cuts(batch.total)[self._rank])
        arrays = {name: getattr(batch, name) for name in PER_EXAMPLE}
        return replace(batch, **{n: np.zeros((count, *a.shape[1:]), a.dtype) for n, a in arrays.items()})

    def micro(self, batch: Batch, empty: bool) -> list[Cut]:
        """Where micro-batches lie in this rank's part; ``empty``: those without examples count, too."""
        count = len(batch.labels)
        if self.shards:  # a batch of fewer examples than it has shows what one example takes
            return [(min(start, count), min(stop, count)) for start, stop in self.shards.within(batch.total)]
        return micro_batches(count, self._accumulate, self._grain, empty)

    def cuts(self, total: int) -> dict[int, list[Cut]]:
        """Trainer → where its micro-batches lie in a batch of ``total``."""
        found = {}
        for rank in self._roles.trainers:
            start, stop = batch_part(total, self._roles.part(rank), len(self._roles.trainers), self._grain)
            micros = micro_batches(stop - start, self._accumulate, self._grain)
            found[rank] = [(start + a, start + b) for a, b in micros]
        return found
