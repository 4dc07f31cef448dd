"""The canonical tree: in what order gradients of shards are added, whoever computed them.

A batch is cut in V shards, and their gradients are added in one binary tree, level by level, neighbours first; an odd
one out passes up. Seven shards::

    0   1   2   3   4   5   6
    └─┬─┘   └─┬─┘   └─┬─┘   │
      └───┬───┘       └──┬──┘
          └──────┬───────┘

A *node* is the sum of shards ``start:stop``. Rank r of p computes shards floor(r · V/p) to floor((r + 1) · V/p), in
order, and adds what it can of the tree alone: it is left with the sums of its maximal subtrees, its *partials*. That is
one where p is a power of two that divides V, or V itself, and never more than about 2 log2(V/p).

Two partials of one rank that are neighbours are not added: somebody else's shard comes in between in the tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Node = tuple[int, int]  # shards start:stop, a subtree


def share(rank: int, size: int, shards: int) -> Node:
    """The shards of a rank, start:stop."""
    return rank * shards // size, (rank + 1) * shards // size


def add_up(values: Sequence, add: Callable):
    """The sum of one value a shard, as the tree has it: its definition."""
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [add(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


def are_siblings(left: Node, right: Node, shards: int) -> bool:
    """Whether the tree adds these two nodes."""
    (start, middle), (begin, stop) = left, right
    width = middle - start
    whole = width & (width - 1) == 0 and start % (2 * width) == 0
    return middle == begin and whole and stop == min(start + 2 * width, shards)


@dataclass(frozen=True, slots=True)
class Fold:
    """What is done with the gradient of one shard: the sums that are held in slots ``adds`` are added to it, one after
    the other; the sum goes to slot ``keep``, which is the last of those or was free; with None it stays where the
    gradient is."""

    adds: tuple[int, ...]
    keep: int | None


def folds(start: int, stop: int, shards: int) -> tuple[list[Fold], list[Node]]:
    """For shards ``start:stop``, one after another: what is done with each; and the nodes that are left, of which all
    but the last lie in slots 0, 1 and so on: the partials. As a binary counter carries."""
    made, held = [], []
    for shard in range(start, stop):
        node, adds = (shard, shard + 1), []
        while held and are_siblings(held[-1], node, shards):
            node = (held.pop()[0], node[1])
            adds.append(len(held))
        last = shard == stop - 1
        made.append(Fold(tuple(adds), None if last else len(held)))
        held.append(node)
    return made, held


def partials(rank: int, size: int, shards: int) -> list[Node]:
    """What the rank is left with, from the first shard to the last."""
    return folds(*share(rank, size, shards), shards)[1]


def slots(start: int, stop: int, shards: int) -> int:
    """How many sums are held at once besides the newest gradient."""
    return max((fold.keep + 1 for fold in folds(start, stop, shards)[0] if fold.keep is not None), default=0)
