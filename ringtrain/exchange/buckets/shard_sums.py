"""Running sums of the gradients of shards, as a rank computes one after another: the part of the tree that is its own.

    shard       2      3          4       (2 to 4 of 8, rank 1 of 3)
    gradient    2      3          4
    slot 0      2      2 + 3      2 + 3

Each gradient is in the arena when it comes, and the next one overwrites it. So what waits for a later shard lies in
slots, as a binary counter carries (:func:`ringtrain.collectives.algorithms.shards.folds`): as few as can be, made once.
"""

from collections.abc import Callable, Sequence

from ringtrain.collectives.algorithms.shards import Node, folds, slots


class ShardSums:
    """grads:   flat, over the arena: where the gradient of each shard comes, and the last partial stays
    own:     this rank's shards start:stop, of ``shards``
    lanes:   arrays like ``grads`` that other ranks may see: slots 0, 1 and so on, where the other partials stay. There
             may be more than this rank has a use for
    scratch: scratch(count, dtype): further slots, of this rank alone
    """

    def __init__(self, ops, grads, own: Node, shards: int, lanes: Sequence, scratch: Callable):
        self._ops, self._grads = ops, grads
        self._folds, _ = folds(*own, shards)
        apart = max(slots(*own, shards) - len(lanes), 0)
        self._slots = [*lanes, *(scratch(grads.size, grads.dtype) for _ in range(apart))]
        self._done: dict[str, int] = {}  # by span, of how many shards it has come
        self.nbytes = len(self._slots) * grads.size * grads.dtype.itemsize

    def add(self, span) -> None:
        """The span's gradient of the next shard has come."""
        done = self._done.get(span.name, 0)
        self._done[span.name] = (done + 1) % len(self._folds)
        fold, grad = self._folds[done], self._grads[span.start : span.stop]
        for slot in fold.adds:
            held = self._slots[slot][span.start : span.stop]
            self._ops.add(held, grad, held if slot == fold.keep else grad)
        if fold.keep is not None and fold.keep not in fold.adds:
            self._ops.copy(grad, self._slots[fold.keep][span.start : span.stop])

    def rehearse(self) -> None:
        """Run every operation once, on no elements."""
        nothing = self._grads[:0]
        self._ops.add(nothing, nothing, nothing)
        self._ops.copy(nothing, nothing)
