"""Averages over ranks that update alone: of their weights, and of the optimizer's state."""

from ringtrain.arrays import Array
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.nn.arena import Arena


class RankAverages:
    """Replaces arrays by their mean over the ranks, in the memory of the gradients, which are free between iterations.

    sums: of the gradients

    ``state_differs``: whether the optimizer's state may differ from rank to rank. All methods but ``rehearse`` and
    ``reset_state`` are collective.
    """

    def __init__(self, settings: ExchangeSettings, arena: Arena, update: OwnedUpdate, sums: Reducer):
        self._ops, self._size = settings.ops, settings.transport.size
        self._arena, self._update, self._sums = arena, update, sums
        self.state_differs = False

    def rehearse(self) -> None:
        """Run every operation once, on no elements."""
        nothing = self._arena.grads[:0]
        self._ops.copy(nothing, nothing)
        self._ops.scale(nothing, 1.0)
        self._ops.fill(nothing, 0)

    def average_weights(self, share: float | None = None) -> None:
        """Average the weights; this rank's weigh ``share``, or as much as any other's."""
        self._average(self._arena.weights, share)

    def average_state(self, share: float | None = None) -> None:
        """Average the optimizer's state in the same way."""
        for slot in self._update.slots.values():
            self._average(slot, share)
        self.state_differs = False

    def reset_state(self) -> None:
        """Begin the optimizer's state anew, the count of updates included."""
        for slot in self._update.slots.values():
            self._ops.fill(slot, 0)
        self._update.step = 0
        self.state_differs = False

    def gather(self) -> dict:
        """Return the mean of the ranks' states. All ranks continue with it, as a resumed run does."""
        if self.state_differs:
            self.average_state()
        return self._update.state()

    def _average(self, array: Array, share: float | None) -> None:
        buffer = self._arena.grads
        self._ops.copy(array, buffer)
        self._ops.scale(buffer, 1 / self._size if share is None else share)
        self._sums.wait_all()
        self._ops.copy(buffer, array)
