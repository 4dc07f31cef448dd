"""To one root from some of the ranks, and back: the two halves of a server's work, straight or by way of nodes.

A tree says whom each rank sends to. Straight: everybody to the root. By nodes: everybody to the head of its node, and
heads to the root, so that a node's network interface carries one buffer, whatever the ranks in the node.

1.  Every rank adds what its children send, in the order of ranks with its own in its place, and sends the sum to its
    parent. The root ends with the sum.
2.  The root sends to its children, and they to theirs.

Four ranks on two nodes, the root is 0::

        straight                   by nodes

       1   2   3                   1     3
        \\  |  /                     |     |
         v v v                     v     v
           0                       0 <-- 2

Ranks that are not in the tree take no part: they have no gradients to give, and want no weights.

Steps: a rank's, as many as it has children, and one. Bytes: everyone but the root sends n; the root sends n for each
of its children.

Source: textbook; the tree by nodes is that of CaffeOnSpark's leaders.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step

OWN, SCRATCH = 0, 1  # the only chunk, and room for another


@dataclass(frozen=True, slots=True)
class RootedTree:
    """``parents``: of each of ``size`` ranks; None of the root, and of those that take no part."""

    root: int
    parents: tuple[int | None, ...]

    @property
    def size(self) -> int:
        return len(self.parents)

    def children(self, rank: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == rank]


def straight(root: int, members: Sequence[int], size: int) -> RootedTree:
    return RootedTree(root, tuple(root if rank in members and rank != root else None for rank in range(size)))


def by_nodes(root: int, members: Sequence[int], node_of: Sequence[int]) -> RootedTree:
    """The head of a node is its first member; of the root's node, the root."""
    heads = {node_of[rank]: rank for rank in sorted(members, reverse=True)}
    heads[node_of[root]] = root
    parents: list[int | None] = [None] * len(node_of)
    for rank in members:
        head = heads[node_of[rank]]
        parents[rank] = root if rank == head else head
    parents[root] = None
    return RootedTree(root, tuple(parents))


def reduce(tree: RootedTree) -> Schedule:
    """The first half: the root ends with the sum of the members."""

    def steps(rank: int) -> Iterator[Step]:
        children = tree.children(rank)
        yield from _earlier([child for child in children if child < rank], rank)
        # One step a child: additions into one span are ordered by steps, and by nothing else.
        for child in children:
            if child > rank:
                yield Step(recvs=(Move(child, OWN, OWN + 1, add=True),))
        if tree.parents[rank] is not None:
            yield Step(sends=(Move(tree.parents[rank], OWN, OWN + 1),))

    def wire(rank: int) -> int:
        return int(tree.parents[rank] is not None)

    return Schedule("server-reduce", tree.size, 1, steps, wire, REDUCE_SCATTER, lambda chunk: tree.root)


def _earlier(children: list[int], rank: int) -> Iterator[Step]:
    """Those of lower rank come first in the sum: several are added apart, and then to this rank's own."""
    if len(children) == 1:
        yield Step(recvs=(Move(children[0], OWN, OWN + 1, add=True),))
    elif children:
        for child in children:
            yield Step(recvs=(Move(child, SCRATCH, SCRATCH + 1, add=child != children[0]),))
        yield Step((Move(rank, SCRATCH, SCRATCH + 1),), (Move(rank, OWN, OWN + 1, add=True),))


def spread(tree: RootedTree) -> Schedule:
    """The second half: the members end with what the root began with."""

    def steps(rank: int) -> Iterator[Step]:
        if tree.parents[rank] is not None:
            yield Step(recvs=(Move(tree.parents[rank], OWN, OWN + 1),))
        children = tree.children(rank)
        if children:
            yield Step(sends=tuple(Move(child, OWN, OWN + 1) for child in children))

    def wire(rank: int) -> int:
        return len(tree.children(rank))

    return Schedule("server-spread", tree.size, 1, steps, wire, ALL_GATHER, lambda chunk: tree.root)
