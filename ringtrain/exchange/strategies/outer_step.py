"""The steps that averaging makes by the mean of the ranks' changes: of the slow weights, and of each rank to them.

Slow weights make the step of an outer optimizer: u = momentum·u + d; slow -= rate·(d + momentum·u), d the mean of
slow - own. With momentum 0 and rate 1 they become the mean. Then a rank's weights become the slow ones, or with
``--mixing`` A the sum of A·own and (1-A)·slow.

With ``--centre-rate`` A slow weights are an elastic centre: a rank moves by A·(centre - own) to the centre as it was,
and the centre by p·A·(mean - centre). Ranks stay apart.

Running statistics have no step: the slow ones are the mean.

Source: Douillard et al., DiLoCo, 2023 (outer step), and Streaming DiLoCo, 2025 (mixing); Zhang, Choromanska & LeCun,
Deep learning with elastic averaging SGD, NeurIPS 2015 (centre).
"""

from collections.abc import Sequence

from ringtrain.arrays import Array
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.difference import subtract
from ringtrain.exchange.update.outer_rule import OuterRule, outer_ranges
from ringtrain.exchange.update.ranges import common, join, trained_pieces
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span


class Fragment:
    """Parameters whose weights make a step together: ``pieces`` of the arena, of which ``others`` are not trained."""

    def __init__(self, spans: Sequence[Span]):
        self.pieces, trained = join([(span.start, span.stop) for span in spans]), trained_pieces(spans)
        self.ranges = outer_ranges(trained)
        self.others = join([(s.start, s.stop) for s in spans if not common(trained, [(s.start, s.stop)])])


class OuterOptimizer:
    """Makes the steps of the slow weights, and moves this rank's.

    ``slots``: the slow weights at the beginning of the period, and the step's momentum; the same on all ranks.
    ``apart``: whether ranks stay apart after a step
    """

    required_names, optional_names = ("period_begin", "outer_momentum"), ()

    def __init__(self, settings: ExchangeSettings):
        config = settings.config
        self._ops = settings.ops
        self._centre_rate, self._mixing = config.centre_rate, config.mixing
        self.apart = bool(self._centre_rate or self._mixing)
        rate = config.outer_lr * (settings.transport.size * self._centre_rate or 1.0)
        self._rule = OuterRule(self._ops, config.outer_momentum, rate)
        self.slots: dict = {}

    def bind(self, arena: Arena) -> None:
        self._arena, self._whole = arena, Fragment(arena.spans)
        self._slow, self._velocity = (self._ops.zeros((arena.count,), arena.weights.dtype) for _ in range(2))
        self.slots = dict(zip(self.required_names, (self._slow, self._velocity), strict=True))
        self.nbytes = len(self.slots) * arena.count * arena.weights.dtype.itemsize

    def rehearse(self) -> None:
        self._rule.rehearse(self._whole.ranges, self._slow, self._arena.grads, self._velocity)

    def begin(self) -> None:
        """The first periods begin; weights are the same on all ranks."""
        self._ops.copy(self._arena.weights, self._slow)

    def put_change(self, fragment: Fragment, change: Array) -> None:
        """Write slow - own weights to ``change``, an array over the arena."""
        for start, stop in fragment.pieces:
            subtract(self._ops, self._slow[start:stop], self._arena.weights[start:stop], change[start:stop])

    def step(self) -> None:
        """Step to, or past, the mean that is in the place of the weights."""
        self.put_change(self._whole, self._arena.grads)
        for start, stop in self._whole.others:
            self._ops.copy(self._arena.weights[start:stop], self._slow[start:stop])
        self._move(self._whole, self._arena.grads)

    def step_along(self, fragment: Fragment, change: Array) -> None:
        """Step along the mean of the ranks' changes, which is in ``change``; it is written over."""
        if self._centre_rate:
            self._approach(fragment, 1.0 - self._centre_rate)
        for start, stop in fragment.others:
            self._ops.scale(change[start:stop], -1.0)
            self._ops.add(self._slow[start:stop], change[start:stop], self._slow[start:stop])
        self._move(fragment, change)

    def _move(self, fragment: Fragment, change: Array) -> None:
        self._rule.step(fragment.ranges, self._slow, change, self._velocity)
        if not self._centre_rate:
            self._approach(fragment, self._mixing)

    def _approach(self, fragment: Fragment, share: float) -> None:
        """Leave this share of the rank's own weights, and take the rest from the slow ones."""
        ops = self._ops
        for start, stop in fragment.pieces:
            weights, target = self._arena.weights[start:stop], self._slow[start:stop]
            if not share:
                ops.copy(target, weights)
                continue
            ops.scale(weights, share / (1.0 - share))
            ops.add(weights, target, weights)
            ops.scale(weights, 1.0 - share)

    def state(self) -> dict:
        return {name: self._ops.to_host(slot) for name, slot in self.slots.items()}

    def restore(self, state: dict) -> None:
        for name, slot in self.slots.items():
            self._ops.upload(state[name], slot)
