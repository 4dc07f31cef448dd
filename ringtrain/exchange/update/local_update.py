"""The update of all weights by this rank's own gradient."""

from ringtrain.exchange.update.clip import Clipping, trained_runs
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.nn.arena import Arena
from ringtrain.ops.base import Ops


class LocalUpdate:
    """clip_norm: the largest norm of this rank's gradient; None for no limit"""

    def __init__(self, ops: Ops, arena: Arena, update: OwnedUpdate, clip_norm: float | None):
        self._count, self._update = arena.count, update
        self._clipping = Clipping(ops, arena.grads, trained_runs(arena.spans), clip_norm)

    def rehearse(self) -> None:
        """Run every operation once, on no elements."""
        self._clipping.rehearse()
        self._update.rehearse()

    def apply(self, lr: float) -> None:
        """Clip the gradient and update every weight."""
        self._clipping.apply()
        self._update.apply(lr, 0, self._count)
