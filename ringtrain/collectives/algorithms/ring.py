"""The ring all-reduce: each rank exchanges messages with its two neighbours only, and sends at most twice the buffer.

Steps: 2(p - 1) for p ranks. Bytes: each rank sends 2(p - 1)/p · n, which hardly depends on p and is the least
that any all-reduce without reduction in the network can do.

The buffer is cut into p chunks. Rank r sends to r + 1 and receives from r - 1 (mod p), all at the same time.

1.  Reduce-scatter, p - 1 steps. In step k rank r sends chunk r - k, and adds the chunk that arrives to its chunk
    r - k - 1. Each chunk travels once around the ring and collects one contribution from each rank. Afterwards rank r
    holds the whole sum of chunk r + 1 only.
2.  All-gather, p - 1 steps. In step k rank r sends chunk r + 1 - k, which is final, and overwrites its chunk
    r - k by the final one that arrives.

Three ranks, chunks a b c, contributions 0 1 2; brackets mark the chunk that a rank sends next::

                  rank 0              rank 1              rank 2
    first      [a0] b0  c0         a1 [b1] c1          a2  b2 [c2]
    last add    a0  b0 [c02]      [a01] b1  c1         a2 [b12] c2
    gather      a0 [B] c02         a01  b1 [C]        [A]  b12  c2
    last       [A]  B   c02        a01 [B]  C          A   b12 [C]
    end         A   B   C          A   B   C           A   B   C

Each chunk's sum is made once, on one rank, and then copied, so that all ranks hold the same bits.

Source: Patarasuk & Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009;
Gibiansky, Bringing HPC techniques to deep learning, Baidu 2017.
"""

from collections.abc import Iterator

from ringtrain.collectives.compose import chunk_a_rank
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step


def reduce_scatter(size: int) -> Schedule:
    """Return the first half of the all-reduce: rank r ends with the sum of chunk r + 1."""

    def steps(rank: int) -> Iterator[Step]:
        for k in range(size - 1):
            yield _pass_on(rank, size, rank - k, add=True)

    return chunk_a_rank("ring-reduce-scatter", size, steps, REDUCE_SCATTER, lambda chunk: (chunk - 1) % size)


def all_gather(size: int) -> Schedule:
    """Return the second half of the all-reduce: rank r begins with chunk r + 1."""

    def steps(rank: int) -> Iterator[Step]:
        for k in range(size - 1):
            yield _pass_on(rank, size, rank + 1 - k, add=False)

    return chunk_a_rank("ring-all-gather", size, steps, ALL_GATHER, lambda chunk: (chunk - 1) % size)


def _pass_on(rank: int, size: int, chunk: int, add: bool) -> Step:
    """Send ``chunk`` to the right while the chunk before it arrives from the left."""
    out, into = chunk % size, (chunk - 1) % size
    left, right = (rank - 1) % size, (rank + 1) % size
    return Step(sends=(Move(right, out, out + 1),), recvs=(Move(left, into, into + 1, add),))
