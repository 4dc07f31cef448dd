"""The update of the layers of one part of a pipeline, on a rank that holds them."""

from collections.abc import Callable
from dataclasses import replace

from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.deferred_update import summed_buckets
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.subgroup import Subgroup
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.exchange.update.ranges import Piece
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.optim.optimizers import Optimizer


class PartUpdate:
    """Updates elements ``span`` of the arena.

    over_parts: from the sum of squares in this part to that in all parts; collective
    front:      the ranks that hold the first part, and sum its gradients; None on a rank of another part
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        arena: Arena,
        optimizer: Optimizer,
        span: Piece,
        over_parts: Callable[[float], float],
        front: Subgroup | None,
    ):
        self._ops, self._arena, clip_norm = settings.ops, arena, settings.config.clip_norm
        self.start, self.stop = span
        self.owned = OwnedUpdate(settings.ops, arena, optimizer, arena.grads, [span], clip_norm, over_parts)
        self.summing: BucketedAllReduce | None = None
        self.sums: Reducer | None = None
        if front is not None:
            self.summing = BucketedAllReduce(replace(settings, transport=front))
            spans = [span for span in arena.spans if self.start <= span.start and span.stop <= self.stop]
            self.sums = self.summing.bind(spans, arena.grads)

    def rehearse(self) -> None:
        """Run every operation once, on no elements."""
        nothing = self._arena.grads[:0]
        if self.summing:
            self.summing.rehearse(nothing)
        self._ops.scale(nothing, 1.0)
        self.owned.rehearse()

    def grad_ready(self, span: Span) -> None:
        """Start the sum of this span's gradient over the front ranks."""
        if self.sums is not None and span.stop <= self.stop:
            self.sums.grad_ready(span)

    def apply_micro_batch(self, lr: float, share: float, step: int) -> None:
        """Update by the gradient of one micro-batch, which is this share of the batch."""
        self._ops.scale(self._arena.grads[self.start : self.stop], 1 / share)
        self.owned.step = step
        self.owned.apply(lr * share, self.start, self.stop)

    def apply(self, lr: float, step: int) -> None:
        """Update by the gradient of the whole batch, on front ranks as its sums arrive."""
        self.owned.step = step
        if self.sums is None:
            self.owned.apply_all(lr)
            return
        for bucket in summed_buckets(self.sums, self.owned):
            self.owned.apply(lr, bucket.start, bucket.stop)
