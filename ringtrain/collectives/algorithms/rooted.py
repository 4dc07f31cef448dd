"""Reduction to one root from some of the ranks, and broadcast back: the two halves of a server's work.

1.  Every member sends its buffer to the root, which adds all, and its own, in the order of ranks.
2.  The root sends the sum to every member.

Ranks that are no members take no part: they have no gradients to give, and need no weights.

Steps: one more than there are members. Bytes: each member sends n; the root sends n for each of them. Source: textbook.
"""

from collections.abc import Iterator, Sequence

from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step

OWN, SCRATCH = 0, 1  # the only chunk, and room for another


def reduce_to_root(root: int, members: Sequence[int], size: int, name: str = "server-reduce") -> Schedule:
    """Return the first half: the root ends with the sum of the members, which it may be among, and its own buffer."""
    others = sorted({*members} - {root})

    def steps(rank: int) -> Iterator[Step]:
        if rank == root:
            yield from _earlier([other for other in others if other < root], root)
            # One step a member: additions into one span are ordered by steps, and by nothing else.
            for other in others:
                if other > root:
                    yield Step(recvs=(Move(other, OWN, OWN + 1, add=True),))
        elif rank in others:
            yield Step(sends=(Move(root, OWN, OWN + 1),))

    return Schedule(name, size, 1, steps, lambda rank: int(rank in others), REDUCE_SCATTER, lambda chunk: root)


def _earlier(members: list[int], rank: int) -> Iterator[Step]:
    """Return the members of lower rank, which come first in the sum: several are added separately, and then to this
    rank's own buffer."""
    if len(members) == 1:
        yield Step(recvs=(Move(members[0], OWN, OWN + 1, add=True),))
    elif members:
        for member in members:
            yield Step(recvs=(Move(member, SCRATCH, SCRATCH + 1, add=member != members[0]),))
        yield Step((Move(rank, SCRATCH, SCRATCH + 1),), (Move(rank, OWN, OWN + 1, add=True),))


def broadcast_from_root(root: int, members: Sequence[int], size: int, name: str = "server-spread") -> Schedule:
    """Return the second half: the members end with the buffer of the root."""
    others = sorted({*members} - {root})

    def steps(rank: int) -> Iterator[Step]:
        if rank in others:
            yield Step(recvs=(Move(root, OWN, OWN + 1),))
        elif rank == root and others:
            yield Step(sends=tuple(Move(other, OWN, OWN + 1) for other in others))

    def wire(rank: int) -> int:
        return len(others) if rank == root else 0

    return Schedule(name, size, 1, steps, wire, ALL_GATHER, lambda chunk: root)
