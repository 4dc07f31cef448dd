"""Reduction to one root from some of the ranks, and broadcast back: the two halves of a server's work.

A tree names the parent of each rank. Straight: every member sends to the root.

1.  Every rank adds its children's buffers to its own, all in the order of ranks, and sends the sum to its parent. The
    root ends with the sum.
2.  The root sends to its children, and they to theirs.

Ranks outside the tree take no part: they have no gradients to give, and need no weights.

Steps: one more than the rank has children. Bytes: each rank but the root sends n; the root sends n for each of its
children. Source: textbook.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step

OWN, SCRATCH = 0, 1  # the only chunk, and room for another


@dataclass(frozen=True, slots=True)
class RootedTree:
    """The parents of ``size`` ranks; None for the root, and for ranks that take no part."""

    root: int
    parents: tuple[int | None, ...]

    @property
    def size(self) -> int:
        return len(self.parents)

    def children(self, rank: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == rank]


def straight(root: int, members: Sequence[int], size: int) -> RootedTree:
    """Return the tree in which each member sends to the root."""
    return RootedTree(root, tuple(root if rank in members and rank != root else None for rank in range(size)))


def reduce_to_root(tree: RootedTree, name: str = "server-reduce") -> Schedule:
    """Return the first half: the root ends with the sum of the members."""

    def steps(rank: int) -> Iterator[Step]:
        children = tree.children(rank)
        yield from _earlier([child for child in children if child < rank], rank)
        # One step a child: additions into one span are ordered by steps, and by nothing else.
        for child in children:
            if child > rank:
                yield Step(recvs=(Move(child, OWN, OWN + 1, add=True),))
        parent = tree.parents[rank]
        if parent is not None:
            yield Step(sends=(Move(parent, OWN, OWN + 1),))

    def wire(rank: int) -> int:
        return int(tree.parents[rank] is not None)

    return Schedule(name, tree.size, 1, steps, wire, REDUCE_SCATTER, lambda chunk: tree.root)


def _earlier(children: list[int], rank: int) -> Iterator[Step]:
    """Return the children of lower rank, which come first in the sum: several are added separately, and then to this
    rank's own buffer."""
    if len(children) == 1:
        yield Step(recvs=(Move(children[0], OWN, OWN + 1, add=True),))
    elif children:
        for child in children:
            yield Step(recvs=(Move(child, SCRATCH, SCRATCH + 1, add=child != children[0]),))
        yield Step((Move(rank, SCRATCH, SCRATCH + 1),), (Move(rank, OWN, OWN + 1, add=True),))


def broadcast_from_root(tree: RootedTree, name: str = "server-spread") -> Schedule:
    """Return the second half: the members end with the buffer of the root."""

    def steps(rank: int) -> Iterator[Step]:
        parent = tree.parents[rank]
        if parent is not None:
            yield Step(recvs=(Move(parent, OWN, OWN + 1),))
        children = tree.children(rank)
        if children:
            yield Step(sends=tuple(Move(child, OWN, OWN + 1) for child in children))

    def wire(rank: int) -> int:
        return len(tree.children(rank))

    return Schedule(name, tree.size, 1, steps, wire, ALL_GATHER, lambda chunk: tree.root)
