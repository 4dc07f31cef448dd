"""One optimizer's state for all, where each rank that trains has one of its own: their mean."""

from collections.abc import Sequence

import numpy as np

from ringtrain.exchange.update.owned_update import STEP, OwnedUpdate
from ringtrain.transport.base import Transport


class MeanState:
    """update:   of this rank; it has no state where the rank does not train
    slots:    names of the state's arrays
    trainers: the ranks that have one
    carrier:  flat, over the arena: memory to make means in
    """

    def __init__(
        self,
        transport: Transport,
        ops,
        update: OwnedUpdate,
        slots: Sequence[str],
        trainers: Sequence[int],
        carrier,
        deadline_s: float,
    ):
        self._transport, self._ops, self._update, self._slots = transport, ops, update, slots
        self._trainers, self._carrier, self._deadline_s = trainers, carrier, deadline_s

    def take(self, differs: bool) -> dict:
        """All that train go on with the mean, and all ranks get it. Collective. Where states do not differ it is that
        of the first, to the last bit."""
        share = self._share(differs)
        step = np.array([share * self._update.step])
        self._sum(step)
        self._update.step = round(float(step[0]))
        return {STEP: self._update.step, **{name: self._mean(name, share) for name in self._slots}}

    def _share(self, differs: bool) -> float:
        rank = self._transport.rank
        return (rank in self._trainers) / len(self._trainers) if differs else float(rank == self._trainers[0])

    def _mean(self, name: str, share: float) -> np.ndarray:
        ops, update, mean = self._ops, self._update, self._carrier
        ops.fill(mean, 0)
        update.place(name, mean)
        ops.scale(mean, share)
        ops.synchronize()
        self._sum(mean)
        if update.pieces:
            ops.copy(mean, update.slots[name])
        return ops.to_host(mean)

    def _sum(self, array) -> None:
        self._transport.native_allreduce_start(array).wait(self._deadline_s)
