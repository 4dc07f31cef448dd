"""One optimizer state for a checkpoint, where each worker has its own: their mean."""

from collections.abc import Callable, Sequence

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate
from ringtrain.ops.base import Ops


class MeanState:
    """Replaces the states of the workers by their mean.

    update:  of this rank; it has no elements where the rank is no worker
    rank:    this rank
    workers: the ranks that have a state
    carrier: flat, over the arena: memory to make means in
    add:     adds an array over all ranks, in place
    """

    def __init__(
        self, ops: Ops, update: OwnedUpdate, rank: int, workers: Sequence[int], carrier: Array, add: Callable[..., None]
    ):
        self._ops, self._update, self._rank, self._workers = ops, update, rank, workers
        self._carrier, self._add = carrier, add

    def take(self, differs: bool) -> dict:
        """Return the mean on all ranks; the workers continue with it. Collective. Where states do not differ it is the
        first worker's, to the bit."""
        share = self._share(differs)
        step = np.array([share * self._update.step])
        self._add(step)
        self._update.step = round(float(step[0]))
        return {STEP: self._update.step, **{name: self._mean(name, share) for name in self._update.slots}}

    def _share(self, differs: bool) -> float:
        return (self._rank in self._workers) / len(self._workers) if differs else float(self._rank == self._workers[0])

    def _mean(self, name: str, share: float) -> np.ndarray:
        ops, update, mean = self._ops, self._update, self._carrier
        ops.fill(mean, 0)
        update.place(name, mean)
        ops.scale(mean, share)
        ops.synchronize()
        self._add(mean)
        if update.pieces:
            ops.copy(mean, update.slots[name])
        return ops.to_host(mean)
