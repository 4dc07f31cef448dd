"""The merge of a round of changes at a server: their mean, weighted by examples, is the direction of an outer step.

Source: Douillard et al., Decoupled DiLoCo for resilient distributed pre-training, 2026.
"""

from collections.abc import Callable, Sequence

from ringtrain.arrays import Array
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.update.outer_rule import OuterRule, outer_ranges
from ringtrain.exchange.update.ranges import cut, join, trained_pieces
from ringtrain.memory.arena import Arena
from ringtrain.ops.base import Ops

Change = tuple[Array, int]  # of the weights of a shard, and the examples that it is from


class OuterMerge:
    """Steps the weights of the shard ``start:stop`` of an arena along the mean of changes, by Nesterov's rule; running
    statistics take the mean. ``velocity``: the momentum of the step.
    """

    def __init__(self, ops: Ops, arena: Arena, start: int, stop: int, config: ExchangeConfig):
        self._ops, self.start, self.stop, spans = ops, start, stop, arena.spans
        self.velocity = ops.zeros((stop - start,), arena.weights.dtype)
        kinds = trained_pieces(spans), join([(s.start, s.stop) for s in spans if s.parameter.role == "statistic"])
        pieces = [[(a - start, b - start) for a, b in cut(kind, start, stop)] for kind in kinds]
        self._rule = OuterRule(ops, config.outer_momentum, config.outer_lr)
        self._ranges, self._averaged = outer_ranges(pieces[0]), pieces[1]

    def __call__(self, weights: Array, changes: Sequence[Change]) -> None:
        """Make the step. The changes are overwritten."""
        ops, (mean, _) = self._ops, changes[0]
        total = max(sum(examples for _, examples in changes), 1)
        for change, examples in changes:
            ops.scale(change, examples / total)
            if change is not mean:
                ops.add(mean, change, mean)
        for start, stop in self._averaged:
            ops.add(weights[start:stop], mean[start:stop], weights[start:stop])
        ops.scale(mean, -1.0)
        self._rule.step(self._ranges, weights, mean, self.velocity)

    def rehearse(self) -> None:
        spare = self._ops.zeros(self.velocity.shape, self.velocity.dtype)
        self._rule.rehearse(self._ranges, spare, spare, spare)


class OuterMomentum:
    """The momentum of all servers, as an array over the arena: state of a checkpoint. ``merge``: of this rank's shard;
    None: it is no server. ``add``: sums an array over the ranks, in place; collective."""

    required_names, optional_names = ("outer_momentum",), ()

    def __init__(self, ops: Ops, arena: Arena, merge: OuterMerge | None, add: Callable[[Array], None]):
        self._ops, self._arena, self._merge, self._add = ops, arena, merge, add

    def state(self) -> dict:
        """Return the array on all ranks, by way of the memory of the gradients. Collective."""
        flat, merge = self._arena.grads, self._merge
        self._ops.fill(flat, 0)
        if merge is not None:
            self._ops.copy(merge.velocity, flat[merge.start : merge.stop])
        self._ops.synchronize()
        self._add(flat)
        return {name: self._ops.to_host(flat) for name in self.required_names}

    def restore(self, state: dict) -> None:
        if self._merge is not None:
            (name,) = self.required_names
            self._ops.upload(state[name][self._merge.start : self._merge.stop], self._merge.velocity)
