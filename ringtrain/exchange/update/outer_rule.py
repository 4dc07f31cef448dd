"""The step of an outer optimizer, of averages, of gossip's slow weights and of servers, by the optimizers' kernel."""

from collections.abc import Iterable

from ringtrain.arrays import Array
from ringtrain.exchange.update.ranges import Piece
from ringtrain.ops.base import Ops
from ringtrain.ops.update import APPLIED, MULTIPLIER, RATE, UPDATE_NUMBERS, UpdateRange, UpdateRule

Ranges = tuple[UpdateRange, ...]


def outer_ranges(pieces: Iterable[Piece]) -> Ranges:
    """Return the ranges of these elements: no weight decay, the whole rate."""
    return tuple(UpdateRange(start, stop, 1.0, 0.0, 0.0) for start, stop in pieces)


class OuterRule:
    """A step along d on ranges of flat arrays: u = momentum·u + d; w = w - lr·(d + momentum·u), or by the ``kind``
    "sgd" w = w - lr·u."""

    def __init__(self, ops: Ops, momentum: float, lr: float, kind: str = "nesterov"):
        self._ops, self._rule = ops, UpdateRule(kind, momentum)
        self._numbers, self._none = (ops.zeros((UPDATE_NUMBERS,), "float64") for _ in range(2))
        for index, value in ((RATE, lr), (MULTIPLIER, 1.0), (APPLIED, 1.0)):
            ops.put((self._numbers[index : index + 1], value))

    def step(self, ranges: Ranges, w: Array, d: Array, u: Array) -> None:
        self._ops.update(self._rule, ranges, w, d, [u], 0, self._numbers)

    def rehearse(self, ranges: Ranges, w: Array, d: Array, u: Array) -> None:
        """Run the operation once; nothing changes."""
        self._ops.update(self._rule, ranges, w, d, [u], 0, self._none)
