"""Sums of a few numbers over all ranks, for norms."""

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.settings import ExchangeSettings


class SumOverRanks:
    """Adds numbers on the host with the MPI's all-reduce, over ``transport``; collective."""

    def __init__(self, settings: ExchangeSettings):
        self.transport, self._deadline_s = settings.transport, settings.config.deadline_s
        self._number = np.zeros(1)

    def __call__(self, number: float) -> float:
        """Return the sum of one number of each rank."""
        self._number[0] = number
        self.add(self._number)
        return float(self._number[0])

    def add(self, numbers: Array) -> None:
        """Add a flat array over the ranks, in place."""
        self.transport.native_allreduce_start(numbers).wait(self._deadline_s)
