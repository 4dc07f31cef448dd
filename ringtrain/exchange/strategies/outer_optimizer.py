"""The outer step of averaging: from the weights at the start of a period towards the mean at its end."""

from ringtrain.exchange.update.clip import trained_runs
from ringtrain.nn.arena import Arena
from ringtrain.ops.base import Ops


class OuterOptimizer:
    """Makes a Nesterov step along d = before - mean: u = momentum·u + d; w = before - lr·(d + momentum·u). Running
    statistics take the mean.

    ``slots``: the weights at the beginning of the period, and the step's momentum; the same on all ranks.
    """

    required_names, optional_names = ("period_begin", "outer_momentum"), ()

    def __init__(self, ops: Ops, momentum: float, lr: float):
        self._ops, self._momentum, self._lr = ops, momentum, lr
        self.slots: dict = {}

    def bind(self, arena: Arena) -> None:
        self._arena, self._trained = arena, trained_runs(arena.spans)
        self._before, self._velocity = (self._ops.zeros((arena.count,), arena.weights.dtype) for _ in range(2))
        self.slots = dict(zip(self.required_names, (self._before, self._velocity), strict=True))
        self.nbytes = len(self.slots) * arena.count * arena.weights.dtype.itemsize

    def rehearse(self) -> None:
        nothing = self._arena.grads[:0]
        self._ops.add(nothing, nothing, nothing)
        self._step(0, 0)

    def begin(self) -> None:
        """A period begins; weights are the same on all ranks."""
        self._ops.copy(self._arena.weights, self._before)

    def step(self) -> None:
        """A period ends; weights are the mean on all ranks, and gradients are not needed."""
        for start, stop in self._trained:
            self._step(start, stop)

    def _step(self, start: int, stop: int) -> None:
        ops, mean, back = self._ops, self._arena.weights[start:stop], self._arena.grads[start:stop]
        before, velocity = self._before[start:stop], self._velocity[start:stop]
        ops.copy(mean, back)
        ops.scale(back, -1.0)
        ops.add(before, back, back)
        ops.sgd(before, back, velocity, self._lr, self._momentum, 0.0, True)
        ops.copy(before, mean)

    def state(self) -> dict:
        return {name: self._ops.to_host(slot) for name, slot in self.slots.items()}

    def restore(self, state: dict) -> None:
        for name, slot in self.slots.items():
            self._ops.upload(state[name], slot)
