"""The recursive doubling all-reduce: ranks exchange whole buffers, with partners at doubling distances. It takes the
fewest steps, for the smallest buffers.

Steps: log2 p for p ranks, a power of two. Bytes: each rank sends log2 p · n. Any other p folds
(:mod:`ringtrain.collectives.algorithms.power_of_two`): 2 steps and up to n bytes more.

For d = 1, 2, 4, ..., p/2:

1.  Ranks r and r xor d send each other their buffers, which arrive in scratch, since the buffer is still being sent.
2.  Both add the buffer from scratch. Each now holds the sum over the 2d ranks whose numbers differ only in the bits
    below 2d.

Four ranks::

    0 <-> 1   2 <-> 3        01  01  23  23
    0 <-> 2   1 <-> 3        0123 everywhere

Every rank makes every sum itself, all in the order of the binary tree over ranks, (0+1)+(2+3). The two partners
of a step add the same two numbers, one as a + b and the other as b + a, which is the same in floating point: all
ranks hold the same bits.

Source: Thakur, Rabenseifner & Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005.
"""

from collections.abc import Iterator

from ringtrain.collectives.algorithms.power_of_two import folded_all_reduce
from ringtrain.collectives.schedule import Move, Schedule, Step


def recursive_doubling(size: int) -> Schedule:
    """Return an all-reduce by exchanging whole buffers."""
    return folded_all_reduce("recursive-doubling", _doubling, size)


def _doubling(size: int) -> Schedule:
    rounds = size.bit_length() - 1

    def steps(rank: int) -> Iterator[Step]:
        for k in range(rounds):
            peer = rank ^ 1 << k
            yield Step(sends=(Move(peer, 0, 1),), recvs=(Move(peer, 1, 2),))
            yield Step(sends=(Move(rank, 1, 2),), recvs=(Move(rank, 0, 1, add=True),))

    return Schedule("recursive-doubling", size, 1, steps, lambda rank: rounds)
