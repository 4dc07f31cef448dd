"""The butterfly all-reduce: few steps and few bytes at once, by exchanging halves, then quarters, then eighths.

Steps: 2 · log2 p for p ranks, a power of two. Bytes: each rank sends 2(p - 1)/p · n. Any other p folds
(:mod:`ringtrain.collectives.algorithms.power_of_two`): 2 steps more, and up to n bytes more, which the ring and the
circulant do not need.

The buffer is cut into p chunks. Every rank begins with all of them as its range.

1.  Reduce-scatter, log2 p steps with d = 1, 2, 4, ...: vector halving. Ranks r and r xor d have the same range. The
    one whose bit d is 0 keeps the lower half, the other the upper half; each sends the half that it gives up, and
    adds the half that arrives to the half that it keeps. At the end a range is one chunk, summed over all ranks: rank
    r owns the chunk whose number is r with its bits reversed.
2.  All-gather, log2 p steps with d = p/2, ..., 2, 1: vector doubling, the same exchanges back. Each sends the half
    that it kept and overwrites the one that it gave up.

Four ranks, chunks a b c d; a capital is a chunk that the rank adds up, a dot is a chunk that it has given up::

                 rank 0     rank 1     rank 2     rank 3
    d = 1       A B . .    . . C D    A B . .    . . C D       0 with 1, 2 with 3
    d = 2       A . . .    . . C .    . B . .    . . . D       0 with 2, 1 with 3

Distances double while vectors halve: neighbours, which may share a node, exchange the long halves. Contributions are
added in the binary tree over ranks, neighbours first, ((0+1)+(2+3))+..., on any owner of the chunk.

Each chunk's sum is made once, on one rank, and then copied, so that all ranks hold the same bits.

Source: Rabenseifner, Optimization of collective reduction operations, ICCS 2004.
"""

from collections.abc import Iterator

from ringtrain.collectives.algorithms.power_of_two import folded_all_gather, folded_reduce_scatter
from ringtrain.collectives.compose import chunk_a_rank
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step


def reduce_scatter(size: int) -> Schedule:
    """Return the first half of the all-reduce. Ranks that fold own no chunk."""
    return folded_reduce_scatter("butterfly-reduce-scatter", _halving, size)


def all_gather(size: int) -> Schedule:
    """Return the second half of the all-reduce."""
    return folded_all_gather("butterfly-all-gather", _doubling, size)


def _halving(size: int) -> Schedule:
    def steps(rank: int) -> Iterator[Step]:
        for peer, keep, give in _ranges(rank, size):
            yield Step(sends=(Move(peer, *give),), recvs=(Move(peer, *keep, add=True),))

    return chunk_a_rank("halving", size, steps, REDUCE_SCATTER, lambda chunk: _reversed(chunk, size))


def _doubling(size: int) -> Schedule:
    def steps(rank: int) -> Iterator[Step]:
        for peer, keep, give in reversed(_ranges(rank, size)):
            yield Step(sends=(Move(peer, *keep),), recvs=(Move(peer, *give),))

    return chunk_a_rank("doubling", size, steps, ALL_GATHER, lambda chunk: _reversed(chunk, size))


def _ranges(rank: int, size: int) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Yield (peer, chunks that the rank keeps, chunks that it gives up), for d = 1, 2, 4, ..."""
    ranges, low, high = [], 0, size
    for k in range(size.bit_length() - 1):
        middle = (low + high) // 2
        lower, upper = (low, middle), (middle, high)
        keep, give = (upper, lower) if rank >> k & 1 else (lower, upper)
        ranges.append((rank ^ 1 << k, keep, give))
        low, high = keep
    return ranges


def _reversed(chunk: int, size: int) -> int:
    """Return ``chunk`` with the order of its log2(size) bits reversed."""
    bits = size.bit_length() - 1
    return sum((chunk >> k & 1) << (bits - 1 - k) for k in range(bits))
