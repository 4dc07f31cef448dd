"""Synchronous data parallelism: gradients are summed over all ranks, and every rank makes the same update.
Exact.

Gradients travel in buckets, from the arena's end to its start, which is about the order in which backward
finishes them; a bucket starts when all its gradients are final, while backward goes on with the layers
before. All ranks start buckets in the same order, whatever the order in which their gradients become final.

Over a wire of 16 bits they are rounded on their way, and so is the sum: replicas stay equal, but not to one rank alone.
"""

from ringtrain.exchange.base import Exchange, Kit, Traffic
from ringtrain.exchange.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.compressing import Compression
from ringtrain.exchange.compressions import compression_of, make_summing
from ringtrain.exchange.summing import BUCKET_BYTES, settings
from ringtrain.exchange.update import STEP, Update, check_names, check_sizes, everything
from ringtrain.transport.base import Transport

__all__ = ["BUCKET_BYTES", "AllReduce"]


class AllReduce(Exchange):
    """clip_norm:   the largest global norm of the summed gradient; None for no limit
    beside:      see :class:`ringtrain.exchange.base.Kit`
    compression: of what travels; None for none
    how:         arguments of :class:`ringtrain.exchange.summing.Summing`
    """

    name = "allreduce"

    def __init__(
        self,
        transport: Transport,
        ops,
        clip_norm: float | None = None,
        beside=float,
        compression: Compression | None = None,
        **how,
    ):
        self._ops, self._clip_norm, self._beside = ops, clip_norm, beside
        self._summing = make_summing(compression, transport, ops, **how)
        self.exact, self.terms = self._summing.exact, self._summing.terms
        self.state_is_local = self._summing.state_is_local

    def bind(self, arena, optimizer) -> None:
        self._arena = arena
        self._update = Update(self._ops, arena, optimizer, arena.grads, everything(arena))
        self.state_bytes = self._update.nbytes
        self._sums = self._summing.bind(arena.spans, arena.grads)
        self.notes = self._summing.notes
        self._trained = trained_runs(arena.spans)

    def rehearse(self) -> None:
        self._summing.rehearse(self._arena.grads[:0])
        if self._clip_norm is not None:
            rehearse_clip(self._ops, self._arena.grads)
        self._update.rehearse()

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._summing.before(iteration)

    def ready(self, span) -> None:
        self._sums.ready(span)

    def finish(self, iteration: int, lr: float) -> None:
        """Gradients are final, announced or not. Buckets are updated as they arrive; all at once where the
        norm of the whole decides."""
        self._update.step += 1
        for bucket in self._sums.arrivals():
            if self._clip_norm is None:
                self._update.apply(lr, bucket.start, bucket.stop)
        if self._clip_norm is not None:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm, self._beside)
            self._update.apply(lr, 0, self._arena.count)

    def settle(self) -> None:
        """Nothing to do: every rank has made every update."""

    def state(self) -> dict:
        slots = {name: self._ops.to_host(slot) for name, slot in self._update.slots.items()}
        return {STEP: self._update.step, **slots, **self._summing.state()}

    def check_names(self, names) -> None:
        check_names(names, self._update.slots, optional=self._summing.held)

    def restore(self, state: dict) -> None:
        """Raises CheckpointError where the state is another optimizer's, or of another arena."""
        self.check_names(state)
        check_sizes(state, self._arena.count)
        self._update.take(state)
        self._summing.restore(state)

    def traffic(self) -> Traffic:
        return Traffic(self._sums.bytes_sent, self._sums.exposed_s)

    def close(self) -> None:
        del self._sums


def make(kit: Kit) -> AllReduce:
    config = kit.config
    limits = {"clip_norm": config.clip_norm, "beside": kit.beside}
    return AllReduce(kit.transport, kit.ops, **limits, compression=compression_of(config), **settings(kit))
