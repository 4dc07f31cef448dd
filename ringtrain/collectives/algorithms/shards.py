"""The canonical tree: the order in which gradients of shards are added, on any ranks.

A batch is cut into V shards, and their gradients are added in one binary tree, level by level, neighbours first; an odd
node at the end of a level passes up. Seven shards::

    0   1   2   3   4   5   6
    └─┬─┘   └─┬─┘   └─┬─┘   │
      └───┬───┘       └──┬──┘
          └──────┬───────┘

A *node* is the sum of shards ``start:stop``. Rank r of p computes shards floor(r · V/p) to floor((r + 1) · V/p), in
order, and adds as much of the tree as it can alone. It ends with the sums of its maximal subtrees, its *partials*: one
if p is a power of two that divides V, or V itself, and never more than about 2 log2(V/p).

Two neighbouring partials of one rank are not added, because a shard of another rank comes between them in the tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Node = tuple[int, int]  # shards start:stop, a subtree


def shard_range(rank: int, size: int, shards: int) -> Node:
    """Return the shards of a rank, as (start, stop)."""
    return rank * shards // size, (rank + 1) * shards // size


def add_up(values: Sequence, add: Callable):
    """Return the sum of one value a shard, in the order of the tree: the definition of the tree."""
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
    """The additions after the gradient of one shard: the sums in slots ``adds`` are added to it, one after the other,
    and the sum goes to slot ``keep``, which is the last of those or was free. With None it stays in the gradient's
    array."""

    adds: tuple[int, ...]
    keep: int | None


def folds(start: int, stop: int, shards: int) -> tuple[list[Fold], list[Node]]:
    """Return the fold of each of the shards ``start:stop``, in order, and the nodes that are left: the partials. All of
    those but the last lie in slots 0, 1 and so on. It works like the carry of a binary counter."""
    folded: list[Fold] = []
    nodes: list[Node] = []
    for shard in range(start, stop):
        node, adds = (shard, shard + 1), []
        while nodes and are_siblings(nodes[-1], node, shards):
            node = (nodes.pop()[0], node[1])
            adds.append(len(nodes))
        last = shard == stop - 1
        folded.append(Fold(tuple(adds), None if last else len(nodes)))
        nodes.append(node)
    return folded, nodes


def partials(rank: int, size: int, shards: int) -> list[Node]:
    """Return the partials of a rank, from the first shard to the last."""
    return folds(*shard_range(rank, size, shards), shards)[1]


def slots(start: int, stop: int, shards: int) -> int:
    """Return the number of sums that are held at once besides the newest gradient."""
    return max((fold.keep + 1 for fold in folds(start, stop, shards)[0] if fold.keep is not None), default=0)
