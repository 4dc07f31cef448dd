"""The loss multiplied by a factor, so that gradients of float16 activations do not underflow.

The sum of the gradients over all ranks is divided by the factor; powers of two change no digit. A sum that is not
finite has overflowed: the update is left out, and a dynamic factor is halved. All ranks see the same sum. The factor is
in memory of the device, where :meth:`ringtrain.ops.base.Ops.begin_update` adapts it: no iteration waits for the host.

Source: Micikevicius et al., Mixed precision training, ICLR 2018, section 3.2
"""

from collections.abc import Mapping

import numpy as np

from ringtrain.arrays import Array
from ringtrain.ops.base import Ops
from ringtrain.ops.update import FACTOR, LOSS_SCALE_NUMBERS, SKIPPED

START = 2.0**16

NAMES = ("loss_scale", "loss_scale_good", "loss_scale_skipped")  # in the order of ringtrain.ops.update


class LossScale:
    """The factor of the loss, and its history. ``fixed``: a factor that stays; None: a dynamic one.

    numbers: [factor of the next loss, updates since it changed or one was left out, updates left out in all], float64
    factor, skipped: as :meth:`look` has seen them last
    """

    def __init__(self, ops: Ops, fixed: float | None = None):
        self._ops, self.dynamic = ops, fixed is None
        self.numbers = ops.zeros((LOSS_SCALE_NUMBERS,), "float64")
        self._host = ops.pinned((LOSS_SCALE_NUMBERS,), "float64")
        self._put((START if fixed is None else fixed, 0.0, 0.0))

    def _put(self, values) -> None:
        self.factor, self.skipped = values[FACTOR], int(values[SKIPPED])
        self._ops.put(*((self.numbers[i : i + 1], value) for i, value in enumerate(values)))

    @property
    def factor_1(self) -> Array:
        """The factor of the next loss, on the device."""
        return self.numbers[FACTOR : FACTOR + 1]

    def fetch(self) -> None:
        """Fetch the numbers without waiting; :meth:`look` may follow when a later mark is done."""
        self._ops.fetch(self.numbers, self._host)

    def look(self) -> None:
        """Read what was fetched."""
        self.factor, self.skipped = float(self._host[FACTOR]), int(self._host[SKIPPED])

    def state(self) -> dict[str, float]:
        """Return the numbers now; waits for the device."""
        return dict(zip(NAMES, map(float, self._ops.to_host(self.numbers)), strict=True))

    def restore(self, scalars: Mapping[str, float]) -> None:
        """Take the numbers of :meth:`state`, if a run of the same precision wrote them. A fixed factor stays."""
        if not all(name in scalars for name in NAMES):
            return
        values = np.array([scalars[name] for name in NAMES])
        if not self.dynamic:
            values[FACTOR] = self.factor
        self._put(values.tolist())
