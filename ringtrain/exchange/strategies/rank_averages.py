"""Means over ranks that update alone: of their weights, and of the optimizer's state; for good, or for a look."""

from collections.abc import Callable

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.base import RankState
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.servers.change_push import PERIODS_END
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.example_share import ExampleShare
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.memory.arena import Arena

WEIGHTS, EXAMPLES = "weights", "examples"
AVERAGE = "average"
MEAN_ASIDE = "evaluations and checkpoints see the mean of all ranks' weights; each rank goes on with its own"
OF_TRAINING = (MEAN_ASIDE, PERIODS_END)  # a script of PyTorch sees a mean after synchronize() alone


class RankAverages(RankState):
    """Makes means over the ranks in the memory of the gradients, which are free between iterations. For an evaluation
    or a checkpoint :meth:`show_mean` puts one in the place of the weights; :meth:`go_on` puts this rank's own back.

    sums: of the gradients

    ``examples``: by which ranks count in a mean; without any all count alike. ``differs``: whether the optimizer's
    state, and with it weights, may differ from rank to rank. The means are collective.
    """

    def __init__(self, settings: ExchangeSettings, arena: Arena, update: OwnedUpdate, sums: Reducer):
        self._ops, self._transport, self._size = settings.ops, settings.transport, settings.transport.size
        self._arena, self._update, self._sums, self.examples = arena, update, sums, ExampleShare()
        self._weights_differ = self.differs = False
        self._kept: Array | None = None  # this rank's weights, while the mean is in their place

    def diverge(self) -> None:
        """Note that ranks have updated alone."""
        self._weights_differ = self.differs = self._size > 1

    def average(self, momentum: str, combine: Callable[[float], None] | None = None) -> None:
        """Replace the weights by their mean, and the optimizer's state too if ``--average-momentum`` says so.
        ``combine(share)`` makes the mean of the weights in another way."""
        if combine is None:
            self._average(self._arena.weights)
        else:
            combine(self._share)
        if momentum == AVERAGE:
            self._update.agree_on_slots(self._transport)
            for slot in self._update.slots.values():
                self._average(slot)
        self._weights_differ, self.differs = False, self.differs and momentum != AVERAGE
        self.examples = ExampleShare()

    def show_mean(self) -> None:
        """Put the mean in the place of the weights until :meth:`go_on`, unless it is there, or ranks are alike."""
        if self._weights_differ and self._kept is None:
            self._kept = self._ops.empty(self._arena.weights.shape, self._arena.weights.dtype)
            self._ops.copy(self._arena.weights, self._kept)
            self._average(self._arena.weights)

    def go_on(self) -> None:
        """Put this rank's weights back."""
        if self._kept is not None:
            self._ops.copy(self._kept, self._arena.weights)
            self._ops.synchronize()
            self._kept = None

    def gather(self) -> dict:
        """Return the mean of the ranks' states; each rank keeps its own."""
        return self._update.gathered(self._arena.grads, self._add_shares) if self.differs else self._update.state()

    def _average(self, array: Array) -> None:
        self._ops.copy(array, self._arena.grads)
        self._add_shares()
        self._ops.copy(self._arena.grads, array)

    def _add_shares(self) -> None:
        """Replace the array in the memory of the gradients by its mean over the ranks."""
        self._ops.scale(self._arena.grads, self._share)
        self._sums.wait_all()

    @property
    def _share(self) -> float:
        """How much this rank counts in a mean."""
        return self.examples.share if self.examples else 1 / self._size

    def arrays(self) -> dict[str, Array]:
        weights = self._arena.weights if self._kept is None else self._kept
        return {WEIGHTS: weights, **self._update.slots, EXAMPLES: self.examples.counts}

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        """Take this rank's arrays. The mean stays in the place of the weights until :meth:`go_on`."""
        self.diverge()
        self.examples.counts = arrays[EXAMPLES]
        self._kept = self._ops.empty(self._arena.weights.shape, self._arena.weights.dtype)
        for name, array in {WEIGHTS: self._kept, **self._update.slots}.items():
            self._ops.upload(arrays[name], array)
