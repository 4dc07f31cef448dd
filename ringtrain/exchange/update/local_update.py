"""The update of all weights by this rank's own gradient."""

from ringtrain.exchange.update.clip import clip, rehearse_clip, trained_runs
from ringtrain.exchange.update.owned_update import OwnedUpdate


class LocalUpdate:
    """clip_norm: the largest norm of this rank's gradient; None for no limit"""

    def __init__(self, ops, arena, update: OwnedUpdate, clip_norm: float | None):
        self._ops, self._arena, self._update, self._clip_norm = ops, arena, update, clip_norm
        self._trained = trained_runs(arena.spans)

    def rehearse(self) -> None:
        """Run every operation once, on no elements."""
        rehearse_clip(self._ops, self._arena.grads)
        self._update.rehearse()

    def apply(self, lr: float) -> None:
        """Clip the gradient and update every weight."""
        if self._clip_norm is not None:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm)
        self._update.apply(lr, 0, self._arena.count)
