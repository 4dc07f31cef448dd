"""The circulant all-reduce: the fewest bytes and the fewest steps at once, for any number of ranks.

Steps: 2 · ceil(log2 p) for p ranks. Bytes: each rank sends 2(p - 1)/p · n. No folding: p need not be a power of two,
and all ranks do the same.

Let s0 = p, and each next s the half of the one before, rounded up, until it is 1: for 5 ranks 5, 3, 2, 1. The buffer
is cut into p chunks; rank r counts them from its own, so that its i-th chunk is chunk r + i (mod p).

1.  Reduce-scatter, one step for each s after s0, with s' the s before it. Rank r sends its chunks s to s' - 1 to rank
    r + s, where they are chunks 0 to s' - s - 1, and adds the chunks from rank r - s to its own chunks 0 to
    s' - s - 1. It is done with the chunks that it has sent: s chunks are left. At the end one chunk is left, chunk r,
    summed over all ranks.
2.  All-gather, the same steps back, s = 1 first: rank r sends its chunks 0 to s' - s - 1, which are final, to rank
    r - s, and overwrites its chunks s to s' - 1 by the same chunks of rank r + s.

Five ranks, the reduce-scatter on rank 0::

    s' s    its chunks      sends      to    adds to    from
    5  3    0 1 2 3 4       3 4        3     0 1        2
    3  2    0 1 2           2          2     0          3
    2  1    0 1             1          1     0          4
    1       0

Chunks that go around the end of the buffer are two messages. Each chunk's sum is made once, on one rank, and then
copied, so that all ranks hold the same bits.

Source: Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, arXiv 2410.14234, algorithms 1 and 2.
"""

from collections.abc import Iterator
from itertools import pairwise

from ringtrain.collectives.compose import chunk_a_rank
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step


def reduce_scatter(size: int) -> Schedule:
    """Return the first half of the all-reduce: rank r ends with the sum of chunk r."""

    def steps(rank: int) -> Iterator[Step]:
        for wide, skip in pairwise(skips(size)):
            up, down = (rank + skip) % size, (rank - skip) % size
            yield Step(_moves(up, up, wide - skip, size), _moves(down, rank, wide - skip, size, add=True))

    return chunk_a_rank("circulant-reduce-scatter", size, steps, REDUCE_SCATTER)


def all_gather(size: int) -> Schedule:
    """Return the second half of the all-reduce: rank r begins with chunk r."""

    def steps(rank: int) -> Iterator[Step]:
        for skip, wide in pairwise(reversed(skips(size))):
            up, down = (rank + skip) % size, (rank - skip) % size
            yield Step(_moves(down, rank, wide - skip, size), _moves(up, up, wide - skip, size))

    return chunk_a_rank("circulant-all-gather", size, steps, ALL_GATHER)


def skips(size: int) -> list[int]:
    """Return ``size`` and its halves, rounded up, down to 1."""
    lengths = [size]
    while lengths[-1] > 1:
        lengths.append((lengths[-1] + 1) // 2)
    return lengths


def _moves(peer: int, first: int, count: int, size: int, add: bool = False) -> tuple[Move, ...]:
    """Return the moves of ``count`` chunks from ``first`` on: two moves where they wrap around the end of the
    buffer."""
    stop = first + count
    if stop <= size:
        return (Move(peer, first, stop, add),)
    return (Move(peer, first, size, add), Move(peer, 0, stop - size, add))
