"""The update of the fully connected layers, or of some of their columns, that this rank of a pipeline holds."""

from collections.abc import Callable

from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.nn.arena import Arena
from ringtrain.optim.optimizers import Optimizer


class PartUpdate:
    """Updates this rank's arena, which is its part of the network.

    group: the settings of the ranks that divide the columns of these layers
    total: from the sum of squares of this rank's gradients to that of all that are clipped together; None: to that of
           the group
    """

    def __init__(
        self, group: ExchangeSettings, arena: Arena, optimizer: Optimizer, total: Callable[[float], float] | None
    ):
        self._ops, self._arena, self._sum = group.ops, arena, SumOverRanks(group)
        clip_norm, pieces = group.config.clip_norm, everything(arena)
        self.owned = OwnedUpdate(
            group.ops,
            arena,
            optimizer,
            arena.grads,
            pieces,
            clip_norm,
            total or self._sum,
            add_norms=self._sum.add,
        )
        self.iterations = 0  # of the run: the step of its state, since micro-batches count updates by message

    def apply_micro_batch(self, lr: float, share: float, number: int, messages: int) -> None:
        """Update by the gradient of micro-batch ``number`` of ``messages``, which is this share of the batch."""
        self._ops.scale(self._arena.grads, 1 / share)
        self._apply(lr * share, self.iterations * messages + number + 1)

    def finish(self, lr: float, updated: bool) -> None:
        """End an iteration: update by the gradient of the whole batch, unless each of its messages has ``updated``.
        Collective among the ranks that are clipped together."""
        self.iterations += 1
        if not updated:
            self._apply(lr, self.iterations)

    def _apply(self, lr: float, step: int) -> None:
        self.owned.step = step - 1
        self.owned.begin(lr)
        self.owned.apply()

    def restore(self, state: dict) -> None:
        """Take a state in flat host arrays over this rank's arena."""
        self.owned.take(state)
        self.iterations = self.owned.step
