"""The outer step of averaging: from the weights at the start of a period towards the mean at its end."""

from ringtrain.arrays import Array
from ringtrain.exchange.update.ranges import trained_pieces
from ringtrain.nn.arena import Arena
from ringtrain.ops.base import Ops
from ringtrain.ops.update import APPLIED, MULTIPLIER, RATE, UPDATE_NUMBERS, UpdateRange, UpdateRule


class OuterOptimizer:
    """Makes a Nesterov step along d = before - mean: u = momentum·u + d; w = before - lr·(d + momentum·u). Running
    statistics take the mean.

    ``slots``: the weights at the beginning of the period, and the step's momentum; the same on all ranks.
    """

    required_names, optional_names = ("period_begin", "outer_momentum"), ()

    def __init__(self, ops: Ops, momentum: float, lr: float):
        self._ops, self._rule = ops, UpdateRule("nesterov", momentum)
        self._numbers = ops.zeros((UPDATE_NUMBERS,), "float64")
        for index, value in ((RATE, lr), (MULTIPLIER, 1.0), (APPLIED, 1.0)):
            ops.put((self._numbers[index : index + 1], value))
        self.slots: dict = {}

    def bind(self, arena: Arena) -> None:
        self._arena, self._trained = arena, trained_pieces(arena.spans)
        self._ranges = tuple(UpdateRange(start, stop, 1.0, 0.0, 0.0) for start, stop in self._trained)
        self._before, self._velocity = (self._ops.zeros((arena.count,), arena.weights.dtype) for _ in range(2))
        self.slots = dict(zip(self.required_names, (self._before, self._velocity), strict=True))
        self.nbytes = len(self.slots) * arena.count * arena.weights.dtype.itemsize

    def rehearse(self) -> None:
        self._update(self._ops.zeros((UPDATE_NUMBERS,), "float64"))  # none is applied

    def begin(self) -> None:
        """A period begins; weights are the same on all ranks."""
        self._ops.copy(self._arena.weights, self._before)

    def step(self) -> None:
        """A period ends; weights are the mean on all ranks, and gradients are not needed."""
        ops, weights, back = self._ops, self._arena.weights, self._arena.grads
        ops.copy(weights, back)
        ops.scale(back, -1.0)
        ops.add(self._before, back, back)
        self._update(self._numbers)
        for start, stop in self._trained:
            ops.copy(self._before[start:stop], weights[start:stop])

    def _update(self, numbers: Array) -> None:
        arrays = self._before, self._arena.grads, [self._velocity]
        self._ops.update(self._rule, self._ranges, *arrays, 0, numbers)

    def state(self) -> dict:
        return {name: self._ops.to_host(slot) for name, slot in self.slots.items()}

    def restore(self, state: dict) -> None:
        for name, slot in self.slots.items():
            self._ops.upload(state[name], slot)
