"""The loss multiplied by a factor, so that gradients of float16 activations do not underflow.

The sum of the gradients over all ranks is divided by the factor; powers of two change no digit. A sum that is not
finite has overflowed: the update is left out, and a dynamic factor is halved. All ranks see the same sum.

Source: Micikevicius et al., Mixed precision training, ICLR 2018, section 3.2
"""

from collections.abc import Callable, Mapping, Sequence

from ringtrain.arrays import Array
from ringtrain.exchange.update.ranges import Piece
from ringtrain.ops.base import Ops

START = 2.0**16
LARGEST = 2.0**24
GROW_AFTER = 2000  # updates in a row

NAMES = ("loss_scale", "loss_scale_good", "loss_scale_skipped")


class LossScale:
    """The factor of the loss, and its history. ``fixed``: a factor that stays; None: a dynamic one.

    ``factor``: of the next loss. ``skipped``: iterations without an update, in all; ``good``: updates since the factor
    last changed, or one was skipped.
    """

    def __init__(self, fixed: float | None = None):
        self._fixed = fixed is not None
        self.factor = START if fixed is None else fixed
        self.good = self.skipped = 0

    def judge(self, finite: bool) -> None:
        """Count an iteration, whose update is left out unless the gradient is finite, and adapt the factor."""
        if not finite:
            self.skipped, self.good = self.skipped + 1, 0
            if not self._fixed:
                self.factor = max(self.factor / 2, 1.0)
            return
        self.good += 1
        if self.good == GROW_AFTER:
            self.good = 0
            if not self._fixed:
                self.factor = min(self.factor * 2, LARGEST)

    def state(self) -> dict[str, float]:
        return dict(zip(NAMES, (self.factor, self.good, self.skipped), strict=True))

    def restore(self, scalars: Mapping[str, float]) -> None:
        """Take the numbers of :meth:`state`, if a run of the same precision wrote them. A fixed factor stays."""
        if not all(name in scalars for name in NAMES):
            return
        factor, good, skipped = (scalars[name] for name in NAMES)
        self.good, self.skipped = int(good), int(skipped)
        if not self._fixed:
            self.factor = factor


def unscale(
    ops: Ops, grads: Array, runs: Sequence[Piece], scale: LossScale, total: Callable[[float], float] = float
) -> bool:
    """Divide the factor out of the summed gradients in ``runs``. Returns whether they are finite: else the update is
    left out. ``total``: from the count of values in this rank's runs that are not finite to that of all ranks."""
    factor = scale.factor
    finite = not total(float(sum(ops.nonfinite(grads[start:stop]) for start, stop in runs)))
    scale.judge(finite)
    if finite:
        for start, stop in runs:
            ops.scale(grads[start:stop], 1 / factor)
    return finite


def rehearse_unscale(ops: Ops, grads: Array) -> None:
    """Run every operation of :func:`unscale` once, on no elements."""
    ops.nonfinite(grads[:0])
    ops.scale(grads[:0], 1.0)
