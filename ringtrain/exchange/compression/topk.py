"""Top-k: of each parameter a rank sends the elements of largest magnitude, and keeps the rest for later.

Of a parameter of n elements k = ceil(ratio · n) go, and every rank chooses its own:

1. residual += gradient.
2. The k largest elements of the residual move to the rank's slot: k values and k indices. The residual is 0 there.
3. An all-gather brings all slots to every rank.
4. sum = 0; rank 0's pairs are added to it, then those of rank 1, and so on: the same bits everywhere.

They are chosen by parameter, and not by bucket: so what is learnt does not depend on how gradients are cut into
buckets, and a layer with small gradients has its share.

Bytes a rank sends, of n float32: (p-1) · 8k, and those of what goes whole. An all-reduce sends 2(p-1)/p · 4n: with a
ratio of 1/p as much travels, and choosing comes on top.

Source: Stich, Cordonnier & Jaggi, Sparsified SGD with memory, NeurIPS 2018; Lin et al., Deep gradient compression, ICLR
2018, section 3, without momentum correction, factor masking and clipping of a rank's own gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.collectives.execution.execute import MESSAGES
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.exchange import texts
from ringtrain.exchange.compression.method import Compressor, Site, UncompressedPart, cuts, sent, wholes
from ringtrain.nn.buckets import Bucket
from ringtrain.ops.pairs import pair_bytes
from ringtrain.transport.base import Transport

GATHERS = ("ring", "sliced", "circulant")  # all-gathers in which every rank gives one chunk


def gather_for(algorithm: str, transport: Transport) -> str:
    """Whose second half carries the pairs: the algorithm's own, if every rank gives an equal part in it. Otherwise,
    within a node, that of fewest steps, and between nodes that of fewest peers."""
    if algorithm in GATHERS:
        return algorithm
    return "sliced" if transport.nodes == 1 else "ring"


@dataclass(frozen=True, slots=True)
class _Part:
    """One parameter. ``own``: room for the pairs that this rank sends; ``everyones``: for those of all ranks, in rank
    order."""

    gradient: object
    residual: object
    k: int
    own: object
    everyones: Sequence


class TopK(Compressor):
    """ratio: the share of each parameter's elements that goes, above 0 and up to 1"""

    def __init__(self, ratio: float):
        self._ratio = ratio
        self.header = texts.TOP_K(percent=100 * ratio)

    def takes(self, span) -> bool:
        return span.parameter.role == "weight"

    def bind(self, site: Site) -> list[Reduction]:
        transport, itemsize = site.transport, site.buffer.dtype.itemsize
        taken = [[span for span in bucket.spans if self.takes(span)] for bucket in site.buckets]
        slots = [cuts([pair_bytes(self._k(span), itemsize) for span in spans]) for spans in taken]
        lengths = [slot[-1][1] if slot else 0 for slot in slots]
        pieces = cuts([transport.size * length for length in lengths])
        room = transport.scratch(max(pieces[-1][1], 1), "uint8")
        gathered = [Bucket(start, stop, (), stop - start) for start, stop in pieces]
        halves = site.summing.halves(gather_for(site.summing.algorithm, transport), gathered)
        order = [halves.owners.index(rank) for rank in range(transport.size)]

        def part(span, start: int, length: int, slot) -> _Part:
            """Its pairs are bytes ``slot`` of every rank's slot; slots of ``length`` bytes begin at ``start``."""
            at = [start + place * length for place in order]
            everyones = [room[a + slot[0] : a + slot[1]] for a in at]
            own = everyones[transport.rank]
            return _Part(site.gradient(span), site.memory(span), self._k(span), own, everyones)

        parts = [
            [part(span, start, length, slot) for span, slot in zip(spans, each, strict=True)]
            for spans, each, (start, _), length in zip(taken, slots, pieces, lengths, strict=True)
        ]
        whole = wholes(site, self.takes, [0] * len(site.buckets))
        gathers = halves.gathers(room, site.round + 1)
        return [_TopKSum(site.ops, *each) for each in zip(parts, whole, gathers, strict=True)]

    def _k(self, span) -> int:
        return math.ceil(self._ratio * span.count)

    def least_bytes(self, span, itemsize: int, size: int) -> int:
        return (size - 1) * pair_bytes(self._k(span), itemsize)

    def rehearse(self, ops) -> None:
        x, pairs = ops.zeros((1,)), ops.zeros((pair_bytes(1, ops.dtype.itemsize),), "uint8")
        ops.add(x, x, x)
        ops.copy(x, x)
        ops.fill(x, 0)
        ops.take_largest(x, pairs, 1)
        ops.add_pairs(pairs, x, 1)

    def state(self, count: int) -> dict:
        return {}

    def restore(self, state: dict) -> None:
        """There is nothing besides the residual."""


class _TopKSum(Reduction):
    """Of one bucket."""

    algorithm, transport = "top-k", MESSAGES

    def __init__(self, ops, parts: Sequence[_Part], whole: UncompressedPart, gather: Reduction):
        self._ops, self._parts, self._whole, self._gather = ops, parts, whole, gather
        self.bytes_sent = sent(whole.sum, gather)
        self.blocks = whole.sum.blocks
        self._open = False

    def announce(self) -> None:
        self._whole.sum.announce()
        self._gather.announce()

    def start(self) -> None:
        self._open = True
        self._whole.take()
        self._whole.sum.start()
        for part in self._parts:
            self._ops.add(part.residual, part.gradient, part.residual)
            self._ops.take_largest(part.residual, part.own, part.k)
        self._gather.start()

    def test(self) -> bool:
        if self._open and all([self._whole.sum.test(), self._gather.test()]):
            self._put()
        return not self._open

    def wait(self, deadline_s: float) -> None:
        if self._open:
            self._whole.sum.wait(deadline_s)
            self._gather.wait(deadline_s)
            self._put()

    def _put(self) -> None:
        self._open = False
        self._whole.put()
        for part in self._parts:
            self._ops.fill(part.gradient, 0)
            for pairs in part.everyones:
                self._ops.add_pairs(pairs, part.gradient, part.k)
