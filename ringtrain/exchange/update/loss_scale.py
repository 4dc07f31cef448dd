"""The loss multiplied by a factor, so that gradients of float16 activations are not lost below what float16 has.

Gradients carry the factor to their sum over all ranks, where it is divided out; powers of two change no digit. A sum
that is not finite has overflowed: the update is left out, and a dynamic factor is halved. All ranks see the same sum,
and do the same.

Source: Micikevicius et al., Mixed precision training, ICLR 2018, section 3.2
"""

from collections.abc import Callable, Mapping, Sequence

START = 2.0**16
LARGEST = 2.0**24
GROW_AFTER = 2000  # updates in a row

NAMES = ("loss_scale", "loss_scale_good", "loss_scale_skipped")


class LossScale:
    """``fixed``: a factor that stays; None: a dynamic one.

    ``factor``: of the next loss. ``skipped``: iterations without an update, in all; ``good``: updates since the factor
    last changed, or one was skipped.
    """

    def __init__(self, fixed: float | None = None):
        self._fixed = fixed is not None
        self.factor = fixed if self._fixed else START
        self.good = self.skipped = 0

    def judge(self, finite: bool) -> None:
        """The gradient of an iteration was finite, or its update is left out."""
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
        """What :meth:`state` gave; nothing of it, where a run of another precision goes on. A fixed factor stays."""
        if not all(name in scalars for name in NAMES):
            return
        factor, self.good, self.skipped = (scalars[name] for name in NAMES)
        if not self._fixed:
            self.factor = factor


def unscale(
    ops, grads, runs: Sequence[tuple[int, int]], scale: LossScale, total: Callable[[float], float] = float
) -> bool:
    """Divide the factor out of the summed gradients in ``runs``; whether they are finite, and an update is to be made.
    ``total``: from the count of others in this rank's runs to that of all ranks, where each has its own."""
    factor = scale.factor
    finite = not total(float(sum(ops.nonfinite(grads[start:stop]) for start, stop in runs)))
    scale.judge(finite)
    if finite:
        for start, stop in runs:
            ops.scale(grads[start:stop], 1 / factor)
    return finite


def rehearse_unscale(ops, grads) -> None:
    """Run every operation of it once, on no elements."""
    ops.nonfinite(grads[:0])
    ops.scale(grads[:0], 1.0)
