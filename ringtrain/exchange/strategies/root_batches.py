"""The batches that rank 0 reads for all ranks, and the loss that it computes for all."""

import time
from collections.abc import Callable

import numpy as np

from ringtrain.collectives.algorithms.star import ROOT
from ringtrain.exchange import tags
from ringtrain.exchange.base import BatchSource, Cut
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn.workspace import Workspace


class RootBatches(BatchSource):
    """Sends each rank its part of the batch, and the gradient of its outputs.

    ``bytes_sent``, ``bytes_received`` and ``exposed_s``: of these messages.
    """

    def __init__(self, settings: ExchangeSettings):
        transport = settings.transport
        self._transport, self._ops, self._deadline_s = transport, settings.ops, settings.config.deadline_s
        self._is_root = transport.rank == ROOT
        self._others = [rank for rank in range(transport.size) if rank != transport.rank]
        self._space = Workspace(settings.ops)
        self._memory: dict[str, np.ndarray] = {}  # for received parts of batches
        self._cuts: dict[int, list[Cut]] = {}
        self._labels = np.empty(0)  # of the whole batch, on rank 0
        self.bytes_sent = self.bytes_received = 0
        self.exposed_s = 0.0

    def scatter(self, arrays: dict, cuts: dict[int, list[Cut]]) -> dict:
        self._cuts = cuts
        if self._is_root:
            self._labels = arrays["labels"]
            self._send([(rank, array[a:b]) for rank, a, b in self._extents() for array in arrays.values()])
            return {name: array[slice(*_extent(cuts[ROOT]))] for name, array in arrays.items()}
        start, stop = _extent(cuts[self._transport.rank])
        parts = {name: self._host(name, array, stop - start) for name, array in arrays.items()}
        self._receive([(ROOT, part) for part in parts.values()])
        return parts

    def _extents(self) -> list[tuple[int, int, int]]:
        """(rank, start, stop) of the part of each other rank."""
        return [(rank, *_extent(self._cuts[rank])) for rank in self._others]

    def _host(self, name: str, like: np.ndarray, count: int) -> np.ndarray:
        memory = self._memory.get(name)
        if memory is None or len(memory) < count:
            memory = self._memory[name] = np.empty((count, *like.shape[1:]), like.dtype)
        return memory[:count]

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
