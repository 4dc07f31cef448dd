"""Folding: any number of ranks for algorithms that need a power of two. Surplus ranks send to a neighbour.

With c the largest power of two that is not above p, the first p - c pairs of neighbours (0, 1), (2, 3), ... fold:

1.  In each such pair the odd rank sends its whole buffer to the even one, which adds it: one step, n bytes.
2.  The c ranks that are left, in their order, run the algorithm.
3.  The even rank sends the result to the odd one: one step, n bytes.

Seven ranks, c = 4::

    1 --> 0   3 --> 2   5 --> 4   6        then 0 2 4 6 among themselves, then back

Neighbours fold, so that a pair is on one node if nodes hold neighbours.

Source: Rabenseifner, Optimization of collective reduction operations, ICCS 2004.
"""

from collections.abc import Callable, Iterator

from ringtrain.collectives.compose import concat, embed
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step


def core(size: int) -> list[int]:
    """Return the ranks that are left after folding: a power of two of them."""
    count = 1 << (size.bit_length() - 1)
    folded = size - count
    return [2 * i for i in range(folded)] + list(range(2 * folded, size))


def folded_reduce_scatter(name: str, part: Callable[[int], Schedule], size: int) -> Schedule:
    """Return ``part(c)`` among the core, after the folds of the other ranks; the core owns all chunks."""
    inner, ranks = part(len(core(size))), core(size)
    parts = [fold_schedule(size, inner.chunks), _among(inner, ranks, size)]
    return concat(name, parts, REDUCE_SCATTER, lambda chunk: ranks[inner.owner(chunk)])


def folded_all_gather(name: str, part: Callable[[int], Schedule], size: int) -> Schedule:
    """Return ``part(c)`` among the core, which owns all chunks, followed by the sends to the folded ranks."""
    inner, ranks = part(len(core(size))), core(size)
    parts = [_among(inner, ranks, size), unfold_schedule(size, inner.chunks)]
    return concat(name, parts, ALL_GATHER, lambda chunk: ranks[inner.owner(chunk)])


def folded_all_reduce(name: str, part: Callable[[int], Schedule], size: int) -> Schedule:
    """Return ``part(c)`` among the core, between folding and unfolding."""
    inner = part(len(core(size)))
    return concat(
        name, [fold_schedule(size, inner.chunks), _among(inner, core(size), size), unfold_schedule(size, inner.chunks)]
    )


def _among(part: Schedule, ranks: list[int], size: int) -> Schedule:
    return embed(part, ranks, [[(i, i + 1)] for i in range(part.chunks)], size, part.chunks)


def fold_schedule(size: int, chunks: int) -> Schedule:
    """Return the first step: each folded rank sends its buffer to its neighbour, which adds it."""

    def steps(rank: int) -> Iterator[Step]:
        if _folds(rank, size):
            yield Step(sends=(Move(rank - 1, 0, chunks),))
        elif _folds(rank + 1, size):
            yield Step(recvs=(Move(rank + 1, 0, chunks, add=True),))

    return Schedule("fold", size, chunks, steps, lambda rank: chunks * _folds(rank, size))


def unfold_schedule(size: int, chunks: int) -> Schedule:
    """Return the last step: each core rank with a folded neighbour sends it the result."""

    def steps(rank: int) -> Iterator[Step]:
        if _folds(rank, size):
            yield Step(recvs=(Move(rank - 1, 0, chunks),))
        elif _folds(rank + 1, size):
            yield Step(sends=(Move(rank + 1, 0, chunks),))

    return Schedule("unfold", size, chunks, steps, lambda rank: chunks * _folds(rank + 1, size))


def _folds(rank: int, size: int) -> bool:
    """Whether the rank folds into the rank before it."""
    return rank % 2 == 1 and rank < 2 * (size - len(core(size)))
