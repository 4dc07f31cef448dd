"""Means over ranks that update alone: of their weights, and of the optimizer's state; for good, or for a look."""

import math

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.base import RankState
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.servers.change_push import PERIODS_END
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.difference import subtract
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

    sums:    of the gradients
    periods: number of periods that are under way at once

    ``examples``: of each period, by which ranks count in a mean; without any all count alike. ``differs``: whether the
    optimizer's state, and with it weights, may differ from rank to rank. ``distance`` from consensus, while a mean is
    shown that was made of the ranks' weights: sqrt(mean over ranks of |own - mean|²) / |mean|, over trained parameters.
    The means are collective.
    """

    def __init__(self, settings: ExchangeSettings, arena: Arena, update: OwnedUpdate, sums: Reducer, periods: int = 1):
        self._ops, self._transport, self._size = settings.ops, settings.transport, settings.transport.size
        self._arena, self._update, self._sums = arena, update, sums
        self.examples = [ExampleShare(self._size) for _ in range(periods)]
        self._weights_differ = self.differs = False
        self._kept: Array | None = None  # this rank's weights, while the mean is in their place
        self._sum, self._squares = SumOverRanks(settings), settings.ops.zeros((1,), "float64")
        self.distance: float | None = None

    def diverge(self) -> None:
        """Note that ranks have updated alone."""
        self._weights_differ = self.differs = self._size > 1

    def average(self, momentum: str) -> None:
        """Replace the weights by their mean, and the optimizer's state too if ``--average-momentum`` says so: a period
        ends."""
        share = self._share
        self.forget_examples()
        self._average(self._arena.weights, share)
        self.average_state(momentum, share)

    def forget_examples(self) -> None:
        """Count examples from 0."""
        for period in self.examples:
            period.reset()

    def average_state(self, momentum: str, share: float, apart: bool = False) -> None:
        """Replace the optimizer's state by its mean if ``--average-momentum`` says so. ``share``: how much this rank
        counts. Weights are the same on all ranks now, unless ranks stay ``apart``; the examples of a period that has
        begun, while a sum was late, are not."""
        if momentum == AVERAGE:
            self._update.agree_on_slots(self._transport)
            for slot in self._update.slots.values():
                self._average(slot, share)
        self._weights_differ = self._weights_differ and apart
        self.differs = self.differs and (apart or momentum != AVERAGE or any(self.examples))

    def show_mean(self) -> None:
        """Put the mean in the place of the weights until :meth:`go_on`, unless it is there, or ranks are alike."""
        if self._weights_differ and self._kept is None:
            self._kept = self._ops.empty(self._arena.weights.shape, self._arena.weights.dtype)
            self._ops.copy(self._arena.weights, self._kept)
            self._average(self._arena.weights, self._share, aside=True)
            self.distance = self._distance_of(self._kept)

    def _distance_of(self, weights: Array) -> float:
        """Return the distance of the ranks' weights from their mean, which is in the place of them."""
        difference, squares = self._arena.grads, self._square_norm(self._arena.weights)
        subtract(self._ops, self._arena.weights, weights, difference)
        return math.sqrt(self._sum(self._square_norm(difference)) / self._size / (squares or math.inf))

    def _square_norm(self, array: Array) -> float:
        self._ops.gradient_squares(array, self._update.trained, self._squares)
        return float(self._ops.to_host(self._squares)[0])

    def go_on(self) -> None:
        """Put this rank's weights back."""
        if self._kept is not None:
            self._ops.copy(self._kept, self._arena.weights)
            self._ops.synchronize()
            self._kept = self.distance = None

    def gather(self) -> dict:
        """Return the mean of the ranks' states; each rank keeps its own."""
        if not self.differs:
            return self._update.state()
        return self._update.gathered(self._arena.grads, lambda: self._add_shares(self._share, aside=True))

    def _average(self, array: Array, share: float, aside: bool = False) -> None:
        self._ops.copy(array, self._arena.grads)
        self._add_shares(share, aside)
        self._ops.copy(self._arena.grads, array)

    def _add_shares(self, share: float, aside: bool = False) -> None:
        """Replace the array in the memory of the gradients by its mean over the ranks, in which this one counts so.
        ``aside``: it is no part of training, and its bytes are not counted."""
        self._ops.scale(self._arena.grads, share)
        (self._sums.wait_aside if aside else self._sums.wait_all)()

    @property
    def _share(self) -> float:
        """How much this rank counts in a mean."""
        return self.examples[-1].share

    def arrays(self) -> dict[str, Array]:
        weights = self._arena.weights if self._kept is None else self._kept
        counts = np.concatenate([period.counts for period in self.examples])
        return {WEIGHTS: weights, **self._update.slots, EXAMPLES: counts}

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        """Take this rank's arrays. The mean stays in the place of the weights until :meth:`go_on`."""
        self.diverge()
        for period, counts in zip(self.examples, arrays[EXAMPLES].reshape(-1, 2), strict=True):
            period.counts[:] = counts
        self._kept = self._ops.empty(self._arena.weights.shape, self._arena.weights.dtype)
        for name, array in {WEIGHTS: self._kept, **self._update.slots}.items():
            self._ops.upload(arrays[name], array)
