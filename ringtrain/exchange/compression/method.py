"""The interface of a compression method: it prepares sums that carry a part of the gradient, and keeps the residual.

*Error feedback*: the part of a gradient that a rank did not send, its residual, is added to its next gradient. On every
rank

    sent part + new residual = gradient + old residual

so that no part is lost, only late. Replicas stay equal: all ranks compute the same numbers from the parts that all have
sent.

Source: Stich, Cordonnier & Jaggi, Sparsified SGD with memory, NeurIPS 2018; Karimireddy et al., Error feedback fixes
SignSGD and other gradient compression schemes, ICML 2019.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ringtrain.arrays import Array
from ringtrain.collectives.execution.execute import MESSAGES
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.update.ranges import Piece, elements, join
from ringtrain.memory.buckets import Bucket
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport


@dataclass(frozen=True, slots=True)
class CompressionContext:
    """The gradients to compress, and the objects to exchange them with."""

    transport: Transport
    ops: Ops  # of the exchange's stream (:mod:`ringtrain.exchange.buckets.streams`)
    summing: BucketedAllReduce  # prepares all-reduces
    buckets: Sequence[Bucket]
    buffer: Array  # flat, over the arena: gradients, and then their sum
    residual: Array  # likewise: the parts that this rank has not sent
    round: int  # the first of the method's rounds of tags: the tag of a bucket is round · buckets + its index

    def sums(self, buffer: Array, pieces: Sequence[Piece], round: int) -> list[Reduction]:
        """Return the all-reduces of a slice for each bucket. Collective."""
        return self.summing.prepare(buffer, pieces, round * len(self.buckets))

    def gradient_of(self, span: Span) -> Array:
        """Return the elements of one parameter, without padding."""
        return self.buffer[span.start : span.start + span.count]

    def residual_of(self, span: Span) -> Array:
        return self.residual[span.start : span.start + span.count]


class Compressor(ABC):
    """A compression method.

    header:      its name in the run's header
    state_names: names of its arrays in a checkpoint, in addition to the residual; a run continues without them
    rounds:      of tags that its sums take
    """

    header: str
    state_names: tuple[str, ...] = ()
    rounds = 2

    @abstractmethod
    def compresses(self, span: Span) -> bool:
        """Whether this parameter is compressed. Biases, scales, shifts and running statistics are sent whole."""

    @abstractmethod
    def bind(self, context: CompressionContext) -> Sequence[Reduction]:
        """Return the prepared reduction of each bucket. Collective. Raises ConfigError without a parameter to
        compress."""

    @abstractmethod
    def least_bytes(self, span: Span, itemsize: int, size: int) -> int:
        """Return the bytes that each of ``size`` ranks sends of a compressed parameter, by the best all-reduces."""

    @abstractmethod
    def rehearse(self, ops: Ops) -> None:
        """Run every operation of the method alone once, on a few elements."""

    def state(self, count: int) -> dict:
        """Return the arrays of ``state_names``, on the host, over an arena of ``count`` elements."""
        return {}

    def restore(self, state: dict) -> None:  # noqa: B027
        """Take a state that :meth:`state` returned, or a part of it."""


class UncompressedPart:
    """The sum of a bucket's uncompressed parameters, side by side in memory of its own, with ``more`` elements behind
    them. Call :meth:`pack` before ``sum`` starts, :meth:`unpack` when it is done."""

    def __init__(self, ops: Ops, buffer: Array, packed: Array, spans: Sequence[Piece], sum: Reduction):
        self._copy, self.sum = ops.copy, sum
        packed_pieces = slices([stop - start for start, stop in spans])
        self._moves = [(buffer[a:b], packed[c:d]) for (a, b), (c, d) in zip(spans, packed_pieces, strict=True)]
        self.more = packed[elements(spans) : packed.size]

    def pack(self) -> None:
        for part, slot in self._moves:
            self._copy(part, slot)

    def unpack(self) -> None:
        for part, slot in self._moves:
            self._copy(slot, part)


def uncompressed_parts(
    context: CompressionContext, compresses: Callable[[Span], bool], more: Sequence[int]
) -> list[UncompressedPart]:
    """Return the uncompressed part of each bucket, with so many elements more. Collective."""
    rests = [join([(s.start, s.stop) for s in bucket.spans if not compresses(s)]) for bucket in context.buckets]
    pieces = slices([elements(rest) + extra for rest, extra in zip(rests, more, strict=True)])
    packed = context.transport.allocate(max(pieces[-1][1], 1), context.buffer.dtype)
    sums = context.sums(packed, pieces, context.round)
    return [
        UncompressedPart(context.ops, context.buffer, packed[a:b], rest, sum)
        for (a, b), rest, sum in zip(pieces, rests, sums, strict=True)
    ]


class CompressedSum(Reduction):
    """The sum of one bucket: of its uncompressed parameters, ``whole``, and by ``other`` of compressed ones."""

    transport = MESSAGES

    def __init__(self, ops: Ops, parts: Sequence, whole: UncompressedPart, other: Reduction):
        self._ops, self._parts, self._whole, self._other = ops, parts, whole, other
        self.bytes_sent = (whole.sum.bytes_sent or 0) + (other.bytes_sent or 0)  # as far as they are known
        self.blocks = whole.sum.blocks


def slices(sizes: Sequence[int]) -> list[Piece]:
    """Return slices of these sizes, one after another."""
    return list(pairwise(accumulate(sizes, initial=0)))


def least_bytes(count: int, itemsize: int, size: int) -> int:
    """Return the bytes that each of ``size`` ranks sends in an all-reduce of ``count`` elements, at least."""
    return 2 * (size - 1) * count * itemsize // size
