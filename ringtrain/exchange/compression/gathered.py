"""Sums of compressed gradients: every rank gathers the bytes of all ranks, and adds what they code.

1. residual += gradient.
2. A part of the residual moves to the rank's slot, in few bytes; the rest stays.
3. An all-gather brings all slots to every rank.
4. sum = 0; rank 0's slot is added to it, then rank 1's, and so on: the same bits everywhere.

Each parameter has its place in the slot, whatever its bucket: so learning does not depend on the buckets, and a layer
with small gradients has its share.

Bytes a rank sends: (p-1) times a slot, and the uncompressed parameters. An all-reduce of n float32 sends 2(p-1)/p · 4n:
slots of more than 8n/p bytes send more than it.
"""

from abc import abstractmethod
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
from ringtrain.transport.base import Transport

GATHERS = ("ring", "sliced", "circulant")  # all-gathers in which every rank gives one chunk


def gather_for(algorithm: str, transport: Transport) -> str:
    """Return the schedule whose all-gather carries the slots: the algorithm's own, if every rank gives an equal part in
    it. Otherwise the one with the fewest steps within a node, and with the fewest peers between nodes."""
    return schedule_name(algorithm if algorithm in GATHERS else AUTO, transport)


@dataclass(frozen=True, slots=True)
class _Part:
    """One parameter. ``sent``: memory for the bytes that this rank sends; ``gathered``: for those of all ranks, in rank
    order."""

    gradient: Array
    residual: Array
    sent: Array
    gathered: Sequence[Array]


class GatheredCompressor(Compressor):
    """A method whose ranks gather what all send, parameter by parameter, as flat arrays."""

    name: str

    @abstractmethod
    def nbytes(self, count: int, itemsize: int) -> int:
        """Return the bytes that are sent of a parameter: a multiple of 8."""

    def scratch_bytes(self, count: int, itemsize: int) -> int:
        """Return the bytes of scratch memory that :meth:`take` and :meth:`add` need."""
        return 1

    @abstractmethod
    def take(self, ops: Ops, x: Array, sent: Array, scratch: Array) -> None:
        """Move a part of x to ``sent``, as bytes; the rest stays in x."""

    @abstractmethod
    def add(self, ops: Ops, sent: Array, y: Array, scratch: Array) -> None:
        """y += what was sent"""

    def compresses(self, span: Span) -> bool:
        return span.parameter.role == "weight"

    def bind(self, context: CompressionContext) -> Sequence[Reduction]:
        transport, itemsize = context.transport, context.buffer.dtype.itemsize
        taken = [[span for span in bucket.spans if self.compresses(span)] for bucket in context.buckets]
        slots = [slices([self.nbytes(span.count, itemsize) for span in spans]) for spans in taken]
        lengths = [slot[-1][1] if slot else 0 for slot in slots]
        pieces = slices([transport.size * length for length in lengths])
        memory = transport.scratch(max(pieces[-1][1], 1), "uint8")
        buckets = [Bucket(start, stop, (), stop - start) for start, stop in pieces]
        gather = make_schedule(gather_for(context.summing.algorithm, transport), transport.size, ALL_GATHER)
        order = [owners(gather).index(rank) for rank in range(transport.size)]

        def part(span: Span, start: int, length: int, slot: Piece) -> _Part:
            """Its bytes are ``slot`` of every rank's slot; slots of ``length`` bytes begin at ``start``."""
            at = [start + chunk * length for chunk in order]
            gathered = [memory[a + slot[0] : a + slot[1]] for a in at]
            sent = gathered[transport.rank]
            return _Part(context.gradient_of(span), context.residual_of(span), sent, gathered)

        parts = [
            [part(span, start, length, slot) for span, slot in zip(spans, each, strict=True)]
            for spans, each, (start, _), length in zip(taken, slots, pieces, lengths, strict=True)
        ]
        most = max((self.scratch_bytes(span.count, itemsize) for spans in taken for span in spans), default=1)
        scratch = context.ops.zeros((most,), "uint8")
        whole = uncompressed_parts(context, self.compresses, [0] * len(context.buckets))
        gathers = context.summing.gathers(gather, memory, buckets, (context.round + 1) * len(buckets))
        sums = zip(parts, whole, gathers, strict=True)
        return [_GatheredSum(context.ops, *each, method=self, scratch=scratch) for each in sums]

    def least_bytes(self, span: Span, itemsize: int, size: int) -> int:
        return (size - 1) * self.nbytes(span.count, itemsize)

    def rehearse(self, ops: Ops) -> None:
        x, sizes = ops.zeros((1,)), [size(1, ops.dtype.itemsize) for size in (self.nbytes, self.scratch_bytes)]
        sent, scratch = (ops.zeros((nbytes,), "uint8") for nbytes in sizes)
        self.take(ops, x, sent, scratch)
        self.add(ops, sent, x, scratch)


class _GatheredSum(CompressedSum):
    """The sum of one bucket; ``other`` gathers the slots."""

    _open = False

    def __init__(self, *arguments, method: GatheredCompressor, scratch: Array):
        super().__init__(*arguments)
        self.algorithm, self._method, self._scratch = method.name, method, scratch

    def announce(self) -> None:
        self._whole.sum.announce()
        self._other.announce()

    def start(self) -> None:
        self._open = True
        self._whole.pack()
        self._whole.sum.start()
        for part in self._parts:
            self._ops.add(part.residual, part.gradient, part.residual)
            self._method.take(self._ops, part.residual, part.sent, self._scratch)
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
            for sent in part.gathered:
                self._method.add(self._ops, sent, part.gradient, self._scratch)
