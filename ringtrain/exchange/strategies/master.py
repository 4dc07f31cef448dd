"""One rank is the master: it reads the data, computes the loss, adds the gradients and updates. Exact.

1.  Rank 0 has read the whole batch, and sends every other rank its part.
2.  Every rank runs forward on its part, and sends the network's outputs to rank 0.
3.  Rank 0 computes the loss of all of them, and sends every rank the gradient of its own.
4.  Every rank runs backward. Rank 0 receives the gradients, bucket by bucket, and adds them in the order of ranks.
5.  Rank 0 updates, and sends the weights to all.

Steps 4 and 5 are the two halves of the star (:mod:`ringtrain.collectives.algorithms.star`). Rank 0 trains, too, and has
the last part of the batch, which is never smaller than another: so it has as many micro-batches as anybody, and
computes the loss of the others' with its own.

Bytes, n of gradients: another rank sends and receives n, rank 0 (p - 1)·n; batches, outputs and their gradients are
counted besides. So rank 0's link takes p - 1 times as long as any other: it is here to be compared with. Memory: rank 0
alone keeps the optimizer's state, and holds the gradients of the others until they are added.

Source: DataParallel of PyTorch, Paszke et al., NeurIPS 2019; the data parallelism of Caffe and Torch before it.
"""

import time
from collections.abc import Callable

import numpy as np

from ringtrain.collectives.algorithms.star import ROOT
from ringtrain.exchange import tags, texts
from ringtrain.exchange.base import Cut, Exchange, Roles
from ringtrain.exchange.buckets.reduce_scatter import ReduceScatterAllGather
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.reducers import MessageCount, Reducers
from ringtrain.exchange.buckets.streams import two_orders
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.owned_state import OwnedState
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.humanize import format_bytes
from ringtrain.nn.base import Workspace
from ringtrain.nn.buckets import make_buckets

STAR = "star"


class Master(Exchange):
    """Sends the batch from rank 0, which adds the gradients, updates, and sends the weights back."""

    name = "master"
    terms = texts.ON_ROOT
    exact = True
    all_reduces = False
    state_is_local = True

    def __init__(self, settings: ExchangeSettings):
        config, transport = settings.config, settings.transport
        self._settings, self._transport, self._ops = settings, transport, settings.ops
        self._orders, self._clip_norm, self._deadline_s = two_orders(settings.ops), config.clip_norm, config.deadline_s
        self._is_root = transport.rank == ROOT
        self._others = [rank for rank in range(transport.size) if rank != transport.rank]
        self._space = Workspace(settings.ops)
        self._memory: dict[str, np.ndarray] = {}  # that parts of batches are received in
        self._cuts: dict[int, list[Cut]] = {}
        self._labels: np.ndarray | None = None  # of the whole batch, on rank 0
        self._count, self._received = MessageCount(), 0

    def roles(self, size: int) -> Roles:
        return Roles(trainers=(*(rank for rank in range(size) if rank != ROOT), ROOT), loader=ROOT)

    def bind(self, arena, optimizer) -> None:
        config, grads, orders = self._settings.config, arena.grads, self._orders
        self._arena, self._trained = arena, trained_runs(arena.spans)
        buckets = make_buckets(arena.spans, grads.dtype.itemsize, config.bucket_bytes)
        halves = ReduceScatterAllGather(
            STAR, self._transport, orders.own, buckets, config.segment_bytes, self._settings.guard
        )
        self._update = OwnedUpdate(self._ops, arena, optimizer, grads, everything(arena) if self._is_root else [])
        self._sums = Reducer(buckets, halves.scatters(grads, 0), self._deadline_s, orders=orders)
        self._weights = Reducer(buckets, halves.gathers(arena.weights, 1), self._deadline_s, orders=orders)
        self.owned_state = OwnedState(self._update, self.synchronize)
        self.reducers = Reducers(
            {"gradients": self._sums, "weights": self._weights},
            messages=[self._count],
            received=lambda: self._received,
        )
        self.state_bytes = self._update.nbytes
        state = format_bytes(arena.count * grads.dtype.itemsize * len(optimizer.slots))
        self.notes = [texts.ROOT_DOES_ALL(root=ROOT, nbytes=state)]

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._orders.own.add(nothing, nothing, nothing)
        self._ops.copy(nothing, nothing)
        if self._clip_norm is not None:
            rehearse_clip(self._ops, nothing)
        self._update.rehearse()

    # ── the batch and the loss ────────────────────────────────────────────────────────────────────────────────
    def scatter(self, arrays: dict, cuts: dict[int, list[Cut]]) -> dict:
        self._cuts = cuts
        if self._is_root:
            self._labels = arrays["labels"]
            self._send([(rank, array[a:b]) for rank, a, b in self._extents() for array in arrays.values()])
            return {name: array[slice(*_extent(cuts[ROOT]))] for name, array in arrays.items()}
        start, stop = _extent(cuts[self._transport.rank])
        parts = {name: self._host(name, array, stop - start) for name, array in arrays.items()}
        self._receive([(ROOT, part) for part in parts.values()] if stop > start else [])
        return parts

    def _extents(self) -> list[tuple[int, int, int]]:
        """(rank, start, stop) of what each other rank has of the batch, where it has anything."""
        return [(rank, *_extent(self._cuts[rank])) for rank in self._others if self._cuts[rank]]

    def _host(self, name: str, like: np.ndarray, count: int) -> np.ndarray:
        held = self._memory.get(name)
        if held is None or len(held) < count:
            held = self._memory[name] = np.empty((count, *like.shape[1:]), like.dtype)
        return held[:count]

    def loss_gradient(self, micro: int, logits, labels, loss: Callable):
        if self._is_root:
            return self._head_of_all(micro, logits, loss)
        dlogits = self._space("dlogits", logits.shape)
        self._send([(ROOT, logits)])
        self._receive([(ROOT, dlogits)])
        return dlogits

    def _head_of_all(self, micro: int, logits, loss: Callable):
        """Outputs lie by rank, one after another, and so do labels and what comes of them."""
        cuts = {rank: own[micro] for rank, own in self._cuts.items() if micro < len(own)}
        count = sum(stop - start for start, stop in cuts.values())
        outputs = self._space("logits", (count, *logits.shape[1:]))
        labels = self._space("labels", (count,), self._labels.dtype)
        places, at = {}, 0
        for rank, (start, stop) in cuts.items():
            places[rank] = slice(at, at + stop - start)
            self._ops.upload(self._labels[start:stop], labels[places[rank]])
            at += stop - start
        others = [rank for rank in cuts if rank != ROOT]
        self._receive([(rank, outputs[places[rank]]) for rank in others])
        self._ops.copy(logits, outputs[places[ROOT]])
        dlogits = loss(outputs, labels)
        self._send([(rank, dlogits[places[rank]]) for rank in others])
        return dlogits[places[ROOT]]

    def _send(self, moves: list) -> None:
        self._count.bytes_sent += self._move(self._transport.sends, moves)

    def _receive(self, moves: list) -> None:
        self._received += self._move(self._transport.recvs, moves)

    def _move(self, prepare: Callable, moves: list) -> int:
        """Make the moves, and return how many bytes they were. Prepared for this once: how many examples there are
        differs from batch to batch."""
        if not moves:
            return 0
        self._ops.synchronize()
        began = time.perf_counter()
        handle = prepare(moves, tags.MASTER)
        handle.start()
        handle.wait(self._deadline_s)
        handle.free()
        self._count.exposed_s += time.perf_counter() - began
        return sum(span.size * span.dtype.itemsize for _, span in moves)

    # ── gradients and weights ─────────────────────────────────────────────────────────────────────────────────
    def grad_ready(self, span) -> None:
        self._sums.grad_ready(span)

    def cuts(self):
        return self._sums.cuts

    def finish(self, iteration: int, lr: float) -> None:
        """A bucket's weights are sent as soon as they are updated, while other sums still arrive."""
        self._update.step += 1
        for bucket in self._summed():
            self._update.apply(lr, bucket.start, bucket.stop)
            self._weights.start_next()
        self._weights.wait_all()
        copies = len(self._others) if self._is_root else 1
        self._received += copies * self._arena.count * self._arena.grads.dtype.itemsize

    def _summed(self):
        """The buckets whose sums have arrived, one by one; all at once where the norm of the whole decides."""
        if self._clip_norm is None:
            return self._sums.arrivals()
        self._sums.wait_all()
        if self._is_root:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm)
        return self._sums.buckets

    def synchronize(self) -> None:
        """Nothing to do: every iteration ends with all weights everywhere."""


def _extent(cuts: list[Cut]) -> Cut:
    """From the first to the last of cuts that follow one another."""
    return (cuts[0][0], cuts[-1][1]) if cuts else (0, 0)
