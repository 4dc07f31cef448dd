"""Error feedback: sums of compressed gradients, and the residual that each rank keeps for later iterations."""

from collections.abc import Callable, Sequence

import numpy as np

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.arrays import Array
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.base import RankState
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce, GradientReduction
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.compression.method import CompressionContext, Compressor, least_bytes
from ringtrain.exchange.compression.powersgd import PowerSGD
from ringtrain.exchange.compression.quantised import Quantised
from ringtrain.exchange.compression.topk import TopK
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.humanize import format_bytes
from ringtrain.memory.spans import Span

RESIDUAL = "residual"
PLAIN, RESIDUALS, METHOD = range(3)  # rounds of tags: whole gradients; the residuals' sum; the first of the method's


class ErrorFeedback(GradientReduction, RankState):
    """Sums compressed gradients; each rank adds its residual to its next gradient.

    method: a new one for each run
    begin:  the iteration from which sums are compressed
    ``--residual-decay``: what the residual is multiplied by before that

    A checkpoint holds each rank's residual, for as many ranks, and their sum, which others divide: each parameter in
    equal parts, each element to one rank.
    """

    exact = False
    state_is_local = False  # residuals differ from rank to rank

    def __init__(self, method: Compressor, begin: int, settings: ExchangeSettings):
        self._transport, self._ops, self._deadline_s = settings.transport, settings.ops, settings.config.deadline_s
        self.differs = settings.transport.size > 1
        self._method, self._begin, self._decay = method, begin, settings.config.residual_decay
        self._plain = BucketedAllReduce(settings)
        self._phased: list[_PhasedSum] = []  # unless sums are compressed from the beginning
        decay = f" times {self._decay:g}" if self._decay < 1 else ""
        later = f", from iteration {self._begin}" if self._begin else ""
        self.header = f"with {self._method.header}, error feedback{decay}{later}"
        self.optional_names = (RESIDUAL, *self._method.state_names)

    def bind(self, spans: Sequence[Span], buffer: Array) -> Reducer:
        """Return the reducer. Raises ConfigError without a parameter to compress."""
        transport, summing = self._transport, self._plain
        self._residual = transport.allocate(buffer.size, buffer.dtype)
        buckets = summing.buckets(spans, buffer.dtype)
        pieces = [(bucket.start, bucket.stop) for bucket in buckets]
        plain = summing.prepare(buffer, pieces, PLAIN) if self._begin else None
        whole = summing.prepare(self._residual, pieces, RESIDUALS * len(buckets))
        self._gathering = Reducer(buckets, whole, self._deadline_s, summing.streams)
        context = CompressionContext(
            transport, summing.streams.exchange, summing, buckets, buffer, self._residual, METHOD
        )
        self.tags = (METHOD + self._method.rounds) * len(buckets)
        sums = self._method.bind(context)
        if self._decay < 1:
            sums = [
                _DecayedSum(sum, context, [span for span in bucket.spans if self._method.compresses(span)], self._decay)
                for bucket, sum in zip(buckets, sums, strict=True)
            ]
        self._others = [part for span in spans if self._method.compresses(span) for part in self._not_own(span)]
        self.notes = [*summing.notes, *self._bytes(spans, buffer.dtype.itemsize)]
        if plain:
            sums = self._phased = [_PhasedSum(*each) for each in zip(plain, sums, strict=True)]
        return summing.make_reducer(buckets, sums)

    def _bytes(self, spans: Sequence[Span], itemsize: int) -> list[str]:
        """Return a line about the bytes saved, by the best all-reduces."""
        method, size = self._method, self._transport.size
        if size == 1:
            return []
        whole = {span.name: least_bytes(span.stop - span.start, itemsize, size) for span in spans}
        ours = {span.name: method.least_bytes(span, itemsize, size) for span in spans if method.compresses(span)}
        before, after = sum(whole.values()), sum({**whole, **ours}.values())
        return [
            f"{method.header}: {format_bytes(after)} a rank and exchange, {100 * after / before:.3g} % of the "
            f"{format_bytes(before)} of whole arrays"
        ]

    def rehearse(self) -> None:
        self._plain.rehearse()
        self._method.rehearse(self._plain.streams.exchange)

    def before(self, iteration: int) -> None:
        for each in self._phased:
            each.choose(compressed=iteration >= self._begin)

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────
    def state(self) -> dict:
        """Return the residuals' sum and the method's state. Collective, between iterations."""
        kept = self._ops.to_host(self._residual)
        self._gathering.wait_all()
        total = self._ops.to_host(self._residual)
        self.take({RESIDUAL: kept})
        return {RESIDUAL: total, **self._method.state(total.size)}

    def restore(self, state: dict) -> None:
        """Take the arrays that this method can use, also of another strategy's or method's state."""
        if RESIDUAL in state:
            self.take(state)
            for start, stop in self._others:
                self._ops.fill(self._residual[start:stop], 0)
        self._method.restore(state)

    def arrays(self) -> dict[str, Array]:
        return {RESIDUAL: self._residual}

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        self._ops.upload(arrays[RESIDUAL], self._residual)

    def _not_own(self, span: Span) -> list[tuple[int, int]]:
        """Return the slices of a parameter's residual that are other ranks'."""
        rank, size = self._transport.rank, self._transport.size
        first, last = (span.start + span.count * r // size for r in (rank, rank + 1))
        return [(span.start, first), (last, span.stop)]


class _DecayedSum(Reduction):
    """The compressed sum of a bucket: the residuals of ``spans`` are multiplied by a factor before it starts."""

    def __init__(self, sum: Reduction, context: CompressionContext, spans: Sequence[Span], decay: float):
        self._sum, self._ops, self._decay = sum, context.ops, decay
        self._residuals = [context.residual_of(span) for span in spans]
        self.algorithm, self.transport = sum.algorithm, sum.transport
        self.bytes_sent, self.blocks = sum.bytes_sent, sum.blocks

    def announce(self) -> None:
        self._sum.announce()

    def start(self) -> None:
        for residual in self._residuals:
            self._ops.scale(residual, self._decay)
        self._sum.start()

    def test(self) -> bool:
        return self._sum.test()

    def wait(self, deadline_s: float) -> None:
        self._sum.wait(deadline_s)


class _PhasedSum(Reduction):
    """The plain or the compressed sum of a bucket, as chosen at its announcement, or else at its start: a device may
    reach the start after the next choice."""

    def __init__(self, plain: Reduction, compressed: Reduction):
        self._plain, self._compressed, self._now = plain, compressed, plain
        self._announced: Reduction | None = None
        self.algorithm, self.transport = compressed.algorithm, compressed.transport
        self.choose(compressed=False)

    def choose(self, compressed: bool) -> None:
        self._next = self._compressed if compressed else self._plain
        self._show()

    def _show(self) -> None:
        shown = self._announced or self._next
        self.bytes_sent, self.blocks = shown.bytes_sent, shown.blocks

    def announce(self) -> None:
        self._announced = self._next
        self._announced.announce()

    def start(self) -> None:
        self._now, self._announced = self._announced or self._next, None
        self._now.start()
        self._show()

    def test(self) -> bool:
        return self._now.test()

    def wait(self, deadline_s: float) -> None:
        self._now.wait(deadline_s)


METHODS: dict[str, Callable[[ExchangeConfig], Compressor]] = {
    "top-k": lambda config: TopK(config.compress_ratio, config.compress_bits, config.compress_chunk),
    "powersgd": lambda config: PowerSGD(config.compress_rank),
    "quantise": lambda config: Quantised(config.compress_bits or 8),
    "sign": lambda config: Quantised(1),
}


def make_gradient_reduction(settings: ExchangeSettings) -> GradientReduction:
    """Return plain or compressed sums, as the configuration says."""
    config = settings.config
    if config.compress == NONE:
        return BucketedAllReduce(settings)
    return ErrorFeedback(METHODS[config.compress](config), config.compress_from, settings)
