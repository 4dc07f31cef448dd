"""The tree all-reduce: sums climb a binomial tree to rank 0, and the result comes down it again.

Steps: 2 · ceil(log2 p) for p ranks. Bytes: a leaf sends n; the root sends ceil(log2 p) · n; an inner rank sends n for
itself and n for each child. Few steps but whole buffers, so it is for small n; its halves, a reduction to one root and
a broadcast from it, are useful by themselves.

Rank r's parent is r without its lowest set bit; its children are r + d for the powers of two d below that bit.

1.  Reduce. For d = 1, 2, 4, ...: every rank that is an odd multiple of d sends its sum to its parent, d below it,
    which adds it. After this d, rank r holds the sum of ranks r to r + 2d - 1.
2.  Broadcast. The same edges, in the opposite direction and order.

Five ranks, each with the step in which it sends upwards::

    0 <---1--- 1
    | \\
    |  `--2--- 2 <---1--- 3
    `-----3--- 4

The order of additions is the binary tree over ranks, neighbours first: ((0+1)+(2+3))+4. The sum is made once, on the
root, and then copied, so that all ranks hold the same bits.

Source: textbook; Thakur, Rabenseifner & Gropp, Optimization of collective communication operations in MPICH, IJHPCA
2005; the reduction tree of Intel's distributed Caffe.
"""

from collections.abc import Iterator

from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step

ROOT = 0


def reduce(size: int) -> Schedule:
    """Return the first half of the all-reduce: the root ends with the sum."""

    def steps(rank: int) -> Iterator[Step]:
        for child in children(rank, size):
            yield Step(recvs=(Move(child, 0, 1, add=True),))
        if rank != ROOT:
            yield Step(sends=(Move(parent(rank), 0, 1),))

    return Schedule("tree-reduce", size, 1, steps, lambda rank: int(rank != ROOT), REDUCE_SCATTER, lambda chunk: ROOT)


def broadcast(size: int) -> Schedule:
    """Return the second half of the all-reduce: all ranks end with the buffer of the root."""

    def steps(rank: int) -> Iterator[Step]:
        if rank != ROOT:
            yield Step(recvs=(Move(parent(rank), 0, 1),))
        for child in reversed(children(rank, size)):
            yield Step(sends=(Move(child, 0, 1),))

    def wire(rank: int) -> int:
        return len(children(rank, size))

    return Schedule("tree-broadcast", size, 1, steps, wire, ALL_GATHER, lambda chunk: ROOT)


def parent(rank: int) -> int:
    return rank & (rank - 1)


def children(rank: int, size: int) -> list[int]:
    """Return the children of ``rank``, nearest first."""
    reach = (rank & -rank) or size
    return [rank + (1 << k) for k in range(size.bit_length()) if (1 << k) < reach and rank + (1 << k) < size]
