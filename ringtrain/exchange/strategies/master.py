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

import time
from collections.abc import Callable

import numpy as np

from ringtrain.collectives.algorithms.star import ROOT
from ringtrain.exchange import tags
from ringtrain.exchange.base import BatchSource, Cut, ExchangeFacts, Roles
from ringtrain.exchange.buckets.ownership import Ownership, by_schedule
from ringtrain.exchange.owned import Owned
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.humanize import format_bytes
from ringtrain.memory.arena import Arena
from ringtrain.memory.workspace import Workspace
from ringtrain.optim.optimizers import Optimizer

STAR = "star"


class RootBatches(BatchSource):
    """The batches that rank 0 reads for all ranks, and the loss that it computes for all: sends each rank its part, and
    the gradient of its outputs."""

    def __init__(self, settings: ExchangeSettings):
        transport = settings.transport
        self._transport, self._ops, self._deadline_s = transport, settings.ops, settings.config.deadline_s
        self._is_root = transport.rank == ROOT
        self._others = [rank for rank in range(transport.size) if rank != transport.rank]
        self._space = Workspace(settings.ops)
        self._cuts: dict[int, list[Cut]] = {}
        self._labels = np.empty(0)  # of the whole batch, on rank 0

    def scatter(self, arrays: dict, cuts: dict[int, list[Cut]]) -> dict:
        self._cuts = cuts
        if self._is_root:
            self._labels = arrays["labels"]
            self._send([(rank, array[a:b]) for rank, a, b in self._extents() for array in arrays.values()])
            return {name: array[slice(*_extent(cuts[ROOT]))] for name, array in arrays.items()}
        start, stop = _extent(cuts[self._transport.rank])
        parts = {name: np.empty((stop - start, *like.shape[1:]), like.dtype) for name, like in arrays.items()}
        self._receive([(ROOT, part) for part in parts.values()])
        return parts

    def _extents(self) -> list[tuple[int, int, int]]:
        """(rank, start, stop) of the part of each other rank."""
        return [(rank, *_extent(self._cuts[rank])) for rank in self._others]

    def loss_gradient(self, micro: int, logits, labels, loss: Callable):
        if self._is_root:
            return self._loss_of_all(micro, logits, loss)
        dlogits = self._space("dlogits", logits.shape)
        self._send([(ROOT, logits)])
        self._receive([(ROOT, dlogits)])
        return dlogits

    def _loss_of_all(self, micro: int, logits, loss: Callable):
        """Outputs, labels and gradients lie one rank after another."""
        cuts = {rank: rank_cuts[micro] for rank, rank_cuts in self._cuts.items() if micro < len(rank_cuts)}
        count = sum(stop - start for start, stop in cuts.values())
        outputs = self._space("logits", (count, *logits.shape[1:]))
        shape, values = self._labels.shape[1:], self._labels.dtype.kind == "f"
        labels = self._space("labels", (count, *shape), self._ops.dtype if values else self._labels.dtype)
        rows, at = {}, 0
        for rank, (start, stop) in cuts.items():
            rows[rank] = slice(at, at + stop - start)
            self._ops.upload(self._labels[start:stop].astype(labels.dtype, copy=False), labels[rows[rank]])
            at += stop - start
        others = [rank for rank in cuts if rank != ROOT]
        self._receive([(rank, outputs[rows[rank]]) for rank in others])
        self._ops.copy(logits, outputs[rows[ROOT]])
        dlogits = loss(outputs, labels)
        self._send([(rank, dlogits[rows[rank]]) for rank in others])
        return dlogits[rows[ROOT]]

    def _send(self, moves: list) -> None:
        self.bytes_sent += self._move(self._transport.sends, moves)

    def _receive(self, moves: list) -> None:
        self.bytes_received += self._move(self._transport.recvs, moves)

    def _move(self, prepare: Callable, moves: list) -> int:
        """Make the moves, and return their bytes. The number of examples differs from batch to batch, so nothing is
        prepared; an array without examples is not sent."""
        moves = [(rank, span) for rank, span in moves if span.size]
        if not moves:
            return 0
        self._ops.synchronize()
        began = time.perf_counter()
        handle = prepare(moves, tags.MASTER)
        handle.start()
        handle.wait(self._deadline_s)
        handle.free()
        self.exposed_s += time.perf_counter() - began
        return sum(span.size * span.dtype.itemsize for _, span in moves)


def _extent(cuts: list[Cut]) -> Cut:
    """From the first to the last of cuts that follow one another."""
    return (cuts[0][0], cuts[-1][1]) if cuts else (0, 0)


def make_master(settings: ExchangeSettings) -> Owned:
    """Return the exchange in which rank 0 owns all, and sends the batch."""
    others = (rank for rank in range(settings.transport.size) if rank != ROOT)

    def divide(arena: Arena, optimizer: Optimizer) -> tuple[Ownership, list[str]]:
        state = format_bytes(arena.count * arena.grads.dtype.itemsize * len(optimizer.slots))
        note = f"rank {ROOT} reads all batches, computes the loss and keeps the optimizer's {state}"
        return by_schedule(STAR, settings, arena), [note]

    facts = ExchangeFacts(
        name="master",
        header="on rank 0",
        roles=Roles(trainers=(*others, ROOT), loader=ROOT),
        exact=True,
        state_is_local=True,
        all_reduces=False,
    )
    return Owned(settings, facts, divide, RootBatches(settings))
