"""Top-k: a rank sends the elements of largest magnitude of each parameter, and keeps the rest for later.

It sends k = ceil(ratio · n) of a parameter's n elements, and every rank chooses its own:

1. residual += gradient.
2. The k largest elements of the residual move to the rank's slot: k values and k indices. The residual is 0 there.
3. An all-gather brings all slots to every rank.
4. sum = 0; rank 0's pairs are added to it, then rank 1's, and so on: the same bits everywhere.

The choice is by parameter, not by bucket: so learning does not depend on the buckets, and a layer with small gradients
has its share.

Bytes a rank sends, of n float32: (p-1) · 8k, and the uncompressed parameters. An all-reduce sends 2(p-1)/p · 4n:
a ratio of 1/p sends as much, and takes time for the choice.

Source: Stich, Cordonnier & Jaggi, Sparsified SGD with memory, NeurIPS 2018; Lin et al., Deep gradient compression, ICLR
2018, section 3, without momentum correction, factor masking and clipping of a rank's own gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.arrays import Array
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import ALL_GATHER
from ringtrain.exchange.buckets.ownership import owners, schedule_name
from ringtrain.exchange.compression.method import (
    CompressedSum,
    CompressionContext,
    Compressor,
    slices,
    uncompressed_parts,
)
from ringtrain.exchange.update.ranges import Piece
from ringtrain.memory.buckets import Bucket
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops
from ringtrain.ops.pairs import pair_bytes
from ringtrain.transport.base import Transport

GATHERS = ("ring", "sliced", "circulant")  # all-gathers in which every rank gives one chunk


def gather_for(algorithm: str, transport: Transport) -> str:
    """Return the schedule whose all-gather carries the pairs: the algorithm's own, if every rank gives an equal part in
    it. Otherwise the one with the fewest steps within a node, and with the fewest peers between nodes."""
    return schedule_name(algorithm if algorithm in GATHERS else AUTO, transport)


@dataclass(frozen=True, slots=True)
class _Part:
    """One parameter. ``sent``: memory for the pairs that this rank sends; ``gathered``: for the pairs of all ranks, in
    rank order."""

    gradient: Array
    residual: Array
    k: int
    sent: Array
    gathered: Sequence[Array]


class TopK(Compressor):
    """Top-k. ratio: the share of each parameter's elements that a rank sends, above 0 and up to 1"""

    def __init__(self, ratio: float):
        self._ratio = ratio
        self.header = f"top-k {100 * ratio:g} %"

    def compresses(self, span: Span) -> bool:
        return span.parameter.role == "weight"

    def bind(self, context: CompressionContext) -> Sequence[Reduction]:
        transport, itemsize = context.transport, context.buffer.dtype.itemsize
        taken = [[span for span in bucket.spans if self.compresses(span)] for bucket in context.buckets]
        slots = [slices([pair_bytes(self._k(span), itemsize) for span in spans]) for spans in taken]
        lengths = [slot[-1][1] if slot else 0 for slot in slots]
        pieces = slices([transport.size * length for length in lengths])
        pairs = transport.scratch(max(pieces[-1][1], 1), "uint8")
        buckets = [Bucket(start, stop, (), stop - start) for start, stop in pieces]
        gather = make_schedule(gather_for(context.summing.algorithm, transport), transport.size, ALL_GATHER)
        order = [owners(gather).index(rank) for rank in range(transport.size)]

        def part(span: Span, start: int, length: int, slot: Piece) -> _Part:
            """Its pairs are bytes ``slot`` of every rank's slot; slots of ``length`` bytes begin at ``start``."""
            at = [start + chunk * length for chunk in order]
            gathered = [pairs[a + slot[0] : a + slot[1]] for a in at]
            sent = gathered[transport.rank]
            return _Part(context.gradient_of(span), context.residual_of(span), self._k(span), sent, gathered)

        parts = [
            [part(span, start, length, slot) for span, slot in zip(spans, each, strict=True)]
            for spans, each, (start, _), length in zip(taken, slots, pieces, lengths, strict=True)
        ]
        whole = uncompressed_parts(context, self.compresses, [0] * len(context.buckets))
        gathers = context.summing.gathers(gather, pairs, buckets, (context.round + 1) * len(buckets))
        return [_TopKSum(context.ops, *each) for each in zip(parts, whole, gathers, strict=True)]

    def _k(self, span: Span) -> int:
        return math.ceil(self._ratio * span.count)

    def least_bytes(self, span: Span, itemsize: int, size: int) -> int:
        return (size - 1) * pair_bytes(self._k(span), itemsize)

    def rehearse(self, ops: Ops) -> None:
        x, pairs = ops.zeros((1,)), ops.zeros((pair_bytes(1, ops.dtype.itemsize),), "uint8")
        ops.take_largest(x, pairs, 1)
        ops.add_pairs(pairs, x, 1)


class _TopKSum(CompressedSum):
    """The sum of one bucket; ``other`` gathers the pairs."""

    algorithm, _open = "top-k", False

    def announce(self) -> None:
        self._whole.sum.announce()
        self._other.announce()

    def start(self) -> None:
        self._open = True
        self._whole.pack()
        self._whole.sum.start()
        for part in self._parts:
            self._ops.add(part.residual, part.gradient, part.residual)
            self._ops.take_largest(part.residual, part.sent, part.k)
        self._other.start()

    def test(self) -> bool:
        if self._open and all([self._whole.sum.test(), self._other.test()]):
            self._finish()
        return not self._open

    def wait(self, deadline_s: float) -> None:
        if self._open:
            self._whole.sum.wait(deadline_s)
            self._other.wait(deadline_s)
            self._finish()

    def _finish(self) -> None:
        self._open = False
        self._whole.unpack()
        for part in self._parts:
            self._ops.fill(part.gradient, 0)
            for pairs in part.gathered:
                self._ops.add_pairs(pairs, part.gradient, part.k)
