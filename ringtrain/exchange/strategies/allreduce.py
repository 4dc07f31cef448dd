"""Synchronous data parallelism: gradients are summed over all ranks, and every rank makes the same update.
Exact.

Gradients travel in buckets, from the arena's end to its start, which is about the order in which backward
finishes them; a bucket starts when all its gradients are final, while backward goes on with the layers
before. All ranks start buckets in the same order, whatever the order in which their gradients become final.

With ``overlap`` none they all start after backward. With forward an update is made when the next forward pass reads
what it changes (:mod:`ringtrain.exchange.buckets.deferred_update`).

Sums may be of shards of the batch instead of ranks, in one tree: bitwise the same at any number of ranks
(:mod:`ringtrain.exchange.buckets.reproducible`).

Over a wire of 16 bits they are rounded on their way, and so is the sum: replicas stay equal, but not to one rank alone.
"""

from ringtrain.exchange.base import Exchange
from ringtrain.exchange.buckets.bucketed_allreduce import BUCKET_BYTES
from ringtrain.exchange.buckets.deferred_update import BACKWARD, BucketUpdater
from ringtrain.exchange.buckets.reproducible import ReproducibleAllReduce
from ringtrain.exchange.buckets.timings import Traffic
from ringtrain.exchange.compression.catalogue import compression_of, make_summing
from ringtrain.exchange.compression.error_feedback import CompressionSettings
from ringtrain.exchange.settings import ExchangeSettings, settings
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.exchange.update.owned_update import OwnedUpdate, check_names, everything
from ringtrain.transport.base import Transport

__all__ = ["BUCKET_BYTES", "AllReduce"]


class AllReduce(Exchange):
    """clip_norm:   the largest global norm of the summed gradient; None for no limit
    overlap:     none, backward or forward
    beside:      see :class:`ringtrain.exchange.settings.ExchangeSettings`
    compression: of what travels; None for none
    scale:       of the loss; None for none
    shards:      in how many a batch is cut whose gradients are added in one tree; None: gradients are of ranks
    elastic:     see :class:`ringtrain.exchange.buckets.deferred_update.BucketUpdater`
    how:         arguments of :class:`ringtrain.exchange.buckets.bucketed_allreduce.BucketedAllReduce`
    """

    name = "allreduce"

    def __init__(
        self,
        transport: Transport,
        ops,
        clip_norm: float | None = None,
        overlap: str = BACKWARD,
        beside=float,
        compression: CompressionSettings | None = None,
        scale: LossScale | None = None,
        shards: int | None = None,
        elastic: bool = False,
        **how,
    ):
        self._transport, self._ops, self._clip_norm, self._overlap = transport, ops, clip_norm, overlap
        self._scale, self._beside, self._elastic = scale, beside, elastic
        self._parts = ReproducibleAllReduce(shards, transport, ops, overlap=overlap, **how) if shards else None
        self._summing = self._parts or make_summing(compression, transport, ops, overlap=overlap, **how)
        self.shards, self._least = (self._parts.shards, shards) if self._parts else (None, 1)
        self.exact, self.terms = self._summing.exact, self._summing.terms
        self.state_is_local = self._summing.state_is_local
        self.survives_rank_loss = elastic and self.state_is_local

    def bind(self, arena, optimizer) -> None:
        self._arena = arena
        self._update = OwnedUpdate(self._ops, arena, optimizer, arena.grads, everything(arena))
        self.state_bytes = self._update.nbytes
        self._sums = self._summing.bind(arena.spans, arena.grads)
        self.state_bytes += self._parts.nbytes if self._parts else 0
        self._updates = BucketUpdater(
            self._ops,
            arena,
            self._update,
            self._sums,
            self._clip_norm,
            self._overlap,
            self._beside,
            self._scale,
            self._elastic,
        )
        self.notes = [*self._summing.notes, *filter(None, [self._updates.note])]

    @property
    def late(self) -> bool:
        return self._updates.late

    def rehearse(self) -> None:
        self._summing.rehearse(self._arena.grads[:0])
        self._updates.rehearse()

    def before(self, iteration: int, examples: int, total: int) -> None:
        """A rank without examples, or with a shard without, runs no forward pass there, and is about to write its
        gradients."""
        if not examples or total < self._least:
            self._updates.synchronize()
        self._summing.before(iteration)

    def before_read(self, span) -> None:
        self._updates.before_read(span)

    def shard_grad_ready(self, span) -> None:
        self._parts.shard_grad_ready(span)

    def grad_ready(self, span) -> None:
        self._sums.grad_ready(span)

    def cuts(self):
        return self._sums.cuts

    def waits(self):
        return self._updates.waits

    def finish(self, iteration: int, lr: float) -> None:
        self._updates.finish(lr)

    def synchronize(self) -> None:
        """Every rank has made every update, but for those that were left to forward."""
        self._updates.synchronize()

    def state(self) -> dict:
        self.synchronize()
        return {**self._update.state(), **self._summing.state()}

    def kept(self):
        return self._update.kept(alike=True)

    def check_names(self, names) -> None:
        check_names(names, self._update.slots, optional=self._summing.held)

    def restore(self, state: dict) -> None:
        """Raises CheckpointError where the state is another optimizer's, or of another arena."""
        self.check_names(state)
        self._update.take(state)
        self._summing.restore(state)

    def reducers(self) -> dict:
        return {"gradients": self._sums}

    def traffic(self) -> Traffic:
        return Traffic(self._sums.bytes_sent, self._sums.exposed_s, buckets=self._sums.traffic("gradients"))

    def close(self) -> None:
        del self._sums, self._updates


def make(kit: ExchangeSettings) -> AllReduce:
    config = kit.config
    limits = {"clip_norm": config.clip_norm, "beside": kit.beside, "scale": kit.scale}
    summing = {"compression": compression_of(config), "shards": config.shards if config.reproducible else None}
    elastic = config.elastic is not None
    return AllReduce(kit.transport, kit.ops, elastic=elastic, **limits, **summing, **settings(kit))
