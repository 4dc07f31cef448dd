"""The outer step of averaging: from the weights at the start of a period, along the mean of the ranks' changes.

With a compression or a wire of 16 bits the changes travel in place of the weights: what is rounded or left for later is
small beside them, and error feedback adds the rest to the rank's next change.

Source: Douillard et al., DiLoCo, 2023 (outer step); Basu et al., Qsparse-local-SGD, NeurIPS 2019 (compressed changes
with error feedback); Sarfi et al., Communication efficient LLM pre-training with SparseLoCo, 2025 (both).
"""

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.arrays import Array
from ringtrain.exchange.buckets.bucketed_allreduce import GradientReduction
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.compression.error_feedback import make_gradient_reduction
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.ranges import trained_pieces
from ringtrain.memory.arena import Arena
from ringtrain.ops.update import APPLIED, MULTIPLIER, RATE, UPDATE_NUMBERS, UpdateRange, UpdateRule

TRAVEL_WHOLE = {"compress": NONE, "wire": NONE}


def make_change_reduction(settings: ExchangeSettings) -> GradientReduction | None:
    """Return the sums of changes; None where whole weights are averaged."""
    config = settings.config
    whole = config.compress == config.wire == NONE
    return None if whole else make_gradient_reduction(settings)


class OuterOptimizer:
    """The outer step, from the weights at the start of a period towards the mean at its end: a Nesterov step along
    d = before - mean: u = momentum·u + d; w = before - lr·(d + momentum·u). Running statistics take the mean.

    changes: sums the changes before - weights of the ranks; None: the mean of weights is in their place
    ``slots``: the weights at the beginning of the period, and the step's momentum; the same on all ranks.
    """

    required_names, optional_names = ("period_begin", "outer_momentum"), ()

    def __init__(self, settings: ExchangeSettings, changes: GradientReduction | None):
        config, self.changes = settings.config, changes
        self._ops, self._rule = settings.ops, UpdateRule("nesterov", config.outer_momentum)
        self._numbers = self._ops.zeros((UPDATE_NUMBERS,), "float64")
        for index, value in ((RATE, config.outer_lr), (MULTIPLIER, 1.0), (APPLIED, 1.0)):
            self._ops.put((self._numbers[index : index + 1], value))
        self.slots: dict = {}

    def bind(self, arena: Arena) -> None:
        self._arena, self._trained = arena, trained_pieces(arena.spans)
        self._ranges = tuple(UpdateRange(start, stop, 1.0, 0.0, 0.0) for start, stop in self._trained)
        self._before, self._velocity = (self._ops.zeros((arena.count,), arena.weights.dtype) for _ in range(2))
        self.slots = dict(zip(self.required_names, (self._before, self._velocity), strict=True))
        self.sums: Reducer | None = self.changes.bind(arena.spans, arena.grads) if self.changes else None
        self.nbytes = len(self.slots) * arena.count * arena.weights.dtype.itemsize

    def rehearse(self) -> None:
        self._update(self._ops.zeros((UPDATE_NUMBERS,), "float64"))  # none is applied

    def begin(self) -> None:
        """A period begins; weights are the same on all ranks."""
        self._ops.copy(self._arena.weights, self._before)

    def exchange(self, share: float) -> None:
        """Step along the sum of the ranks' changes, in which this rank's counts by its share: a period ends."""
        assert self.sums is not None, "changes travel"
        ops, weights, change = self._ops, self._arena.weights, self._arena.grads
        self._find_change()
        ops.scale(change, share)
        self.sums.wait_all()
        ops.scale(change, -1.0)
        ops.add(self._before, change, weights)
        ops.scale(change, -1.0)
        self._move()

    def step(self) -> None:
        """Step along the change to the weights, the mean on all ranks: a period ends. Gradients are not needed."""
        self._find_change()
        self._move()

    def _move(self) -> None:
        self._update(self._numbers)
        for start, stop in self._trained:
            self._ops.copy(self._before[start:stop], self._arena.weights[start:stop])

    def _find_change(self) -> None:
        ops, change = self._ops, self._arena.grads
        ops.copy(self._arena.weights, change)
        ops.scale(change, -1.0)
        ops.add(self._before, change, change)

    def _update(self, numbers: Array) -> None:
        arrays = self._before, self._arena.grads, [self._velocity]
        self._ops.update(self._rule, self._ranges, *arrays, 0, numbers)

    def state(self) -> dict:
        return {name: self._ops.to_host(slot) for name, slot in self.slots.items()}

    def restore(self, state: dict) -> None:
        for name, slot in self.slots.items():
            self._ops.upload(state[name], slot)
