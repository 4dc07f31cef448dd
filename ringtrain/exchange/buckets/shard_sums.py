"""Running sums of the gradients of shards, as a rank computes one after another: this rank's part of the tree.

    shard       2      3          4       (2 to 4 of 8, rank 1 of 3)
    gradient    2      3          4
    slot 0      2      2 + 3      2 + 3

Each gradient comes in the arena and overwrites the one before. So sums that wait for a later shard lie in slots, as a
binary counter carries (:func:`ringtrain.collectives.algorithms.shards.folds`): as few as possible, made once.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives.algorithms.shards import Node, folds, slots
from ringtrain.nn.base import Span
from ringtrain.ops.base import Ops


class ShardSums:
    """Adds the gradients of this rank's shards.

    grads:       flat, over the arena: each shard's gradient, and the last partial sum
    rank_shards: this rank's shards start:stop, of ``shards``
    inputs:      arrays like ``grads`` that other ranks may read: slots 0, 1 and so on, for the other partial sums.
                 There may be more than this rank needs
    scratch:     scratch(count, dtype): further slots, of this rank alone
    """

    def __init__(
        self,
        ops: Ops,
        grads: Array,
        rank_shards: Node,
        shards: int,
        inputs: Sequence[Array],
        scratch: Callable[[int, np.dtype], Array],
    ):
        self._ops, self._grads = ops, grads
        self._folds, _ = folds(*rank_shards, shards)
        further = max(slots(*rank_shards, shards) - len(inputs), 0)
        self._slots = [*inputs, *(scratch(grads.size, grads.dtype) for _ in range(further))]
        self._done: dict[str, int] = {}  # shards that have come, by span
        self.nbytes = len(self._slots) * grads.size * grads.dtype.itemsize

    def add(self, span: Span) -> None:
        """Add the span's gradient of the next shard."""
        done = self._done.get(span.name, 0)
        self._done[span.name] = (done + 1) % len(self._folds)
        fold, grad = self._folds[done], self._grads[span.start : span.stop]
        for slot in fold.adds:
            partial = self._slots[slot][span.start : span.stop]
            self._ops.add(partial, grad, partial if slot == fold.keep else grad)
        if fold.keep is not None and fold.keep not in fold.adds:
            self._ops.copy(grad, self._slots[fold.keep][span.start : span.stop])
