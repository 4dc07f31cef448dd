"""Rank 0 is the master: it reads the data, computes the loss, adds the gradients and updates. Exact.

1.  Rank 0 reads the whole batch, and sends every other rank its part.
2.  Every rank runs forward on its part, and sends the network's outputs to rank 0.
3.  Rank 0 computes the loss of all outputs, and sends every rank the gradient of its own.
4.  Every rank runs backward. Rank 0 adds the gradients, bucket by bucket, in the order of ranks.
5.  Rank 0 updates, and sends the weights to all.

Steps 4 and 5 are the two halves of the star (:mod:`ringtrain.collectives.algorithms.star`). Rank 0 trains, too, and has
the last part of the batch, which is never smaller than another: so it has as many micro-batches as any rank.

Bytes, n of gradients: another rank sends and receives n, rank 0 (p - 1)·n, and batches, outputs and their gradients in
addition. This strategy is a baseline for comparisons. Memory: rank 0 alone has the optimizer's state, and the gradients
of the others until they are added.

Source: DataParallel of PyTorch, Paszke et al., NeurIPS 2019; the data parallelism of Caffe and Torch before it.
"""

from dataclasses import replace

from ringtrain.collectives.algorithms.star import ROOT
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, Roles
from ringtrain.exchange.buckets.deferred_update import summed_buckets
from ringtrain.exchange.buckets.reduce_scatter import ReduceScatterAllGather
from ringtrain.exchange.buckets.reducer import Reducer, Reducers
from ringtrain.exchange.buckets.streams import stream_pair
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.root_batches import RootBatches
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate, everything
from ringtrain.humanize import format_bytes
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.nn.buckets import make_buckets
from ringtrain.optim.optimizers import Optimizer

STAR = "star"


class Master(Exchange):
    """Sends the batch from rank 0, which adds the gradients, updates, and sends the weights back."""

    batches: RootBatches

    def __init__(self, settings: ExchangeSettings):
        self._settings, self._streams = settings, stream_pair(settings.ops)
        self._is_root = settings.transport.rank == ROOT
        self.batches = RootBatches(settings)
        self._received = 0  # bytes of gradients, or weights
        others = (rank for rank in range(settings.transport.size) if rank != ROOT)
        self.facts = ExchangeFacts(
            name="master",
            header="on rank 0",
            roles=Roles(trainers=(*others, ROOT), loader=ROOT),
            exact=True,
            state_is_local=True,
            all_reduces=False,
        )

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        settings, config, grads, streams = self._settings, self._settings.config, arena.grads, self._streams
        self._arena = arena
        buckets = make_buckets(arena.spans, grads.dtype.itemsize, config.bucket_bytes)
        halves = ReduceScatterAllGather(
            STAR, settings.transport, streams.own, buckets, config.segment_bytes, settings.guard
        )
        pieces = everything(arena) if self._is_root else []
        total = SumOverRanks(settings).square_norm  # every rank clips, and only the root has gradients
        self._update = OwnedUpdate(settings.ops, arena, optimizer, grads, pieces, config.clip_norm, total)
        self._gradients = Reducer(buckets, halves.scatters(grads, 0), config.deadline_s, streams=streams)
        self._weights = Reducer(buckets, halves.gathers(arena.weights, 1), config.deadline_s, streams=streams)
        self.owned_state = OwnedState(self._update, self.synchronize, gather=self._gather)
        self.rehearsed = [self._update]
        self.reducers = Reducers(
            {"gradients": self._gradients, "weights": self._weights},
            messages=[self.batches],
            received=lambda: self._received + self.batches.bytes_received,
        )
        self.ready_points = self._gradients.ready_points
        state = format_bytes(arena.count * grads.dtype.itemsize * len(optimizer.slots))
        notes = [f"rank {ROOT} reads all batches, computes the loss and keeps the optimizer's {state}"]
        self.facts = replace(self.facts, notes=notes, state_bytes=self._update.nbytes)

    def grad_ready(self, span: Span) -> None:
        self._gradients.grad_ready(span)

    def finish(self, iteration: int, lr: float) -> None:
        """A bucket's weights are sent as soon as they are updated, while other sums still arrive."""
        for bucket in summed_buckets(self._gradients, self._update, lr):
            self._update.apply(bucket.start, bucket.stop)
            self._weights.start_next()
        self._weights.wait_all()
        copies = self._settings.transport.size - 1 if self._is_root else 1
        self._received += copies * self._arena.count * self._arena.grads.dtype.itemsize

    def synchronize(self) -> None:
        """Nothing to do: every iteration ends with all weights everywhere."""

    def _gather(self) -> dict:
        """The state on rank 0; elsewhere the step alone."""
        return self._update.state() if self._is_root else {STEP: self._update.step}
