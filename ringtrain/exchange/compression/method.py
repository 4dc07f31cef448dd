"""What a way to compress gradients is: it prepares sums that carry less than was given, and keeps the rest.

*Error feedback*: what a rank did not send is kept, its residual, and added to its next gradient. On every rank

    what was sent + the new residual = gradient + the old residual

so that nothing is lost, only late. Replicas stay equal: all ranks make the same numbers of what all have sent.

Source: Stich, Cordonnier & Jaggi, Sparsified SGD with memory, NeurIPS 2018; Karimireddy et al., Error feedback fixes
SignSGD and other gradient compression schemes, ICML 2019.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.update.ranges import Piece, elements, join
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport


@dataclass(frozen=True, slots=True)
class Site:
    """Where sums are compressed.

    ops:      those of the exchange (:mod:`ringtrain.exchange.buckets.streams`)
    summing:  prepares the sums of what goes whole
    buckets:  what is exchanged together
    buffer:   flat, over the arena: gradients, and then their sum
    residual: likewise: what this rank has not sent
    round:    the first of two uses of tags that are free: the tag of a bucket is round · buckets + its place
    """

    transport: Transport
    ops: object
    summing: BucketedAllReduce
    buckets: Sequence[Bucket]
    buffer: object
    residual: object
    round: int

    def sums(self, buffer, pieces: Sequence[Piece], round: int) -> list[Reduction]:
        """Of a piece for each bucket. Collective."""
        return self.summing.prepare(buffer, pieces, round * len(self.buckets))

    def gradient(self, span):
        """The elements of one parameter, without padding."""
        return self.buffer[span.start : span.start + span.count]

    def memory(self, span):
        return self.residual[span.start : span.start + span.count]


class Compressor(ABC):
    """header: what the run's header says
    held:  names of what a checkpoint holds of it, besides the residual; it can do without
    """

    header: str
    held: tuple[str, ...] = ()

    @abstractmethod
    def takes(self, span) -> bool:
        """Whether this parameter is compressed. Biases, scales and shifts go whole, and running statistics, which are
        no gradients."""

    @abstractmethod
    def bind(self, site: Site) -> list[Reduction]:
        """The sum of each bucket's part of the buffer. Collective. Raises ConfigError where there is nothing to
        compress."""

    @abstractmethod
    def least_bytes(self, span, itemsize: int, size: int) -> int:
        """What each of ``size`` ranks sends of a parameter that is taken, by the best all-reduces."""

    @abstractmethod
    def rehearse(self, ops) -> None:
        """Run every operation of a sum once, on little."""

    @abstractmethod
    def state(self, count: int) -> dict:
        """What is ``held``, in host arrays over an arena of ``count`` elements."""

    @abstractmethod
    def restore(self, state: dict) -> None:
        """What :meth:`state` gave, or a part of it."""


class UncompressedPart:
    """What of a bucket is summed as it is: the parameters that are not compressed, side by side, and ``more`` elements
    behind them. :meth:`take` before ``sum`` starts, :meth:`put` when it is done."""

    def __init__(self, ops, buffer, room, rest: Sequence[Piece], sum: Reduction):
        self._copy, self._moves, self.sum, at = ops.copy, [], sum, 0
        for start, stop in rest:
            self._moves.append((buffer[start:stop], room[at : at + stop - start]))
            at += stop - start
        self.more = room[at : room.size]

    def take(self) -> None:
        for part, place in self._moves:
            self._copy(part, place)

    def put(self) -> None:
        for part, place in self._moves:
            self._copy(place, part)


def wholes(site: Site, takes, more: Sequence[int]) -> list[UncompressedPart]:
    """Of each bucket what the method does not take, and so many elements more. Collective."""
    rests = [join([(s.start, s.stop) for s in bucket.spans if not takes(s)]) for bucket in site.buckets]
    pieces = cuts([elements(rest) + extra for rest, extra in zip(rests, more, strict=True)])
    room = site.transport.allocate(max(pieces[-1][1], 1), site.buffer.dtype)
    sums = site.sums(room, pieces, site.round)
    return [
        UncompressedPart(site.ops, site.buffer, room[a:b], rest, sum)
        for (a, b), rest, sum in zip(pieces, rests, sums, strict=True)
    ]


def cuts(sizes: Sequence[int]) -> list[Piece]:
    """Pieces of these sizes, one after another."""
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    return list(pairwise(edges))


def least_bytes(count: int, itemsize: int, size: int) -> int:
    """What each of ``size`` ranks sends in an all-reduce of so many elements, at the least."""
    return 2 * (size - 1) * count * itemsize // size


def sent(*parts: Reduction) -> int:
    """Bytes of a run; those that nobody tells are left out."""
    return sum(part.bytes_sent or 0 for part in parts)
