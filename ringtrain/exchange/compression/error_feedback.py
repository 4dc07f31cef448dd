"""Error feedback: sums of compressed gradients, and the residual that each rank keeps for later iterations."""

from dataclasses import dataclass

from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.exchange import texts
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.compression.method import Compressor, Site, least_bytes
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.humanize import format_bytes

RESIDUAL = "residual"


@dataclass(frozen=True, slots=True)
class CompressionSettings:
    """method: a new one for each run
    begin:  the iteration from which sums are compressed
    """

    method: Compressor
    begin: int = 0


class ErrorFeedback:
    """Sums compressed gradients; each rank adds its residual to its next gradient.

    The residuals of all ranks, added up, are what a run has to go on with: a checkpoint holds that array. It is shared
    out among ranks, each parameter in equal parts, each element whole to one rank: when a run is resumed, at any number
    of ranks, and by the run that has written the checkpoint, so that both go on alike.
    """

    exact = False
    state_is_local = False  # residuals differ from rank to rank

    required_names = ()

    def __init__(self, compression: CompressionSettings, settings: ExchangeSettings):
        self._transport, self._ops = settings.transport, settings.ops
        self._method, self._begin = compression.method, compression.begin
        self._summing = BucketedAllReduce(settings)
        self._phase = _Phase(compressed=not self._begin)
        self.header = texts.COMPRESSED(method=self._method.header)
        if self._begin:
            self.header = texts.COMPRESSED_FROM(method=self._method.header, iteration=self._begin)
        self.optional_names = (RESIDUAL, *self._method.held)

    def bind(self, spans, buffer) -> Reducer:
        """Collective. Raises ConfigError where there is nothing to compress."""
        transport, summing = self._transport, self._summing
        self._residual = transport.allocate(buffer.size, buffer.dtype)
        buckets = summing.buckets(spans, buffer.dtype)
        pieces = [(bucket.start, bucket.stop) for bucket in buckets]
        plain = summing.prepare(buffer, pieces, 0) if self._begin else None
        whole = summing.prepare(self._residual, pieces, len(buckets))
        self._gathering = Reducer(buckets, whole, summing.deadline_s, streams=summing.streams)
        site = Site(transport, summing.streams.own, summing, buckets, buffer, self._residual, round=2)
        sums = self._method.bind(site)
        self._others = [part for span in spans if self._method.takes(span) for part in self._not_own(span)]
        self.notes = [*summing.notes, *self._bytes(spans, buffer.dtype.itemsize)]
        if plain:
            sums = [_Turn(self._phase, *each) for each in zip(plain, sums, strict=True)]
        return Reducer(buckets, sums, summing.deadline_s, summing.early, summing.streams)

    def _bytes(self, spans, itemsize: int) -> list[str]:
        """What it saves, by the best all-reduces."""
        method, size = self._method, self._transport.size
        if size == 1:
            return []
        whole = {span.name: least_bytes(span.stop - span.start, itemsize, size) for span in spans}
        ours = {span.name: method.least_bytes(span, itemsize, size) for span in spans if method.takes(span)}
        before, after = sum(whole.values()), sum({**whole, **ours}.values())
        sizes = {"after": format_bytes(after), "before": format_bytes(before), "percent": 100 * after / before}
        return [texts.COMPRESSED_BYTES(method=method.header, **sizes)]

    def rehearse(self, nothing) -> None:
        self._summing.rehearse(nothing)
        self._method.rehearse(self._summing.streams.own)

    def before(self, iteration: int) -> None:
        self._phase.compressed = iteration >= self._begin

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────
    def state(self) -> dict:
        """Collective, with nothing on its way. The residual is shared out anew."""
        self._gathering.wait_all()
        residual = self._ops.to_host(self._residual)
        self._keep_own()
        return {RESIDUAL: residual, **self._method.state(residual.size)}

    def restore(self, state: dict) -> None:
        """What other strategies and methods kept will do, as far as it goes."""
        if RESIDUAL in state:
            self._ops.upload(state[RESIDUAL], self._residual)
            self._keep_own()
        self._method.restore(state)

    def _keep_own(self) -> None:
        for start, stop in self._others:
            self._ops.fill(self._residual[start:stop], 0)

    def _not_own(self, span) -> list[tuple[int, int]]:
        """What of a parameter's residual is shared out to other ranks."""
        rank, size = self._transport.rank, self._transport.size
        first, last = (span.start + span.count * r // size for r in (rank, rank + 1))
        return [(span.start, first), (last, span.stop)]


@dataclass(slots=True)
class _Phase:
    compressed: bool


class _Turn(Reduction):
    """The plain sum of a bucket, or the compressed one, by the phase in which it is announced, or started where nobody
    announced it: the next phase may have begun when a device is so far."""

    def __init__(self, phase: _Phase, plain: Reduction, compressed: Reduction):
        self._phase, self._plain, self._compressed, self._now = phase, plain, compressed, plain
        self._announced: Reduction | None = None
        self.algorithm, self.transport = compressed.algorithm, compressed.transport

    @property
    def bytes_sent(self) -> int | None:
        return self._next().bytes_sent

    def _next(self) -> Reduction:
        return self._announced or (self._compressed if self._phase.compressed else self._plain)

    @property
    def blocks(self) -> bool:
        return self._next().blocks

    def announce(self) -> None:
        self._announced = self._next()
        self._announced.announce()

    def start(self) -> None:
        self._now, self._announced = self._next(), None
        self._now.start()

    def test(self) -> bool:
        return self._now.test()

    def wait(self, deadline_s: float) -> None:
        self._now.wait(deadline_s)
