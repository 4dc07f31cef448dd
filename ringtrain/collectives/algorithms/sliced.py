"""The sliced all-reduce: each rank owns a slice and sums it for all ranks.

Steps: 2, for any p. Bytes: each rank sends 2(p - 1)/p · n, in 2(p - 1) messages. The fewest steps and the fewest
bytes; but every rank talks to every other, which suits memory that ranks share, and a network with a wide middle.

The buffer is cut into p slices, and rank r owns slice r.

1.  Every rank sends to each other rank that rank's slice: to rank r + 1 first, then to r + 2 and on, so that the
    messages to one rank are spread out. They arrive in scratch, raw.
2.  Each owner adds the p contributions to its slice, its own among them, in the order of the binary tree over ranks,
    neighbours first: (0+1)+(2+3), and so on, ceil(log2 p) levels. No message is waited for.
3.  Every rank sends its slice, which is now whole, to each other rank, from r + 1 on.

Rank 1 of four, slices a b c d, contributions 0 1 2 3::

    send    c1 to 2, d1 to 3, a1 to 0          arrived: b0 b2 b3
    add     b0+b1, b2+b3, then both            B
    send    B to 2, to 3, to 0                 arrived: A C D

The order of additions does not depend on the owner of a slice: other slice bounds change no bit of the result.
Each sum is made once, on its owner, and then copied, so that all ranks hold the same bits.

Source: Feng, Shi & Jain, CaffeOnSpark, Yahoo 2016, whose ranks exchange slices so; the order of additions is ours.
"""

from collections.abc import Iterator

from ringtrain.collectives.compose import chunk_a_rank
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step


def reduce_scatter(size: int) -> Schedule:
    """Return the first half of the all-reduce: rank r ends with the sum of slice r."""

    def steps(rank: int) -> Iterator[Step]:
        peers = others(rank, size)
        chunks = [(peer, _scratch_chunk(peer, rank, size)) for peer in peers]
        if peers:
            yield Step(_slices(peers, peers), tuple(Move(peer, at, at + 1) for peer, at in chunks))
        yield from _additions(rank, size)

    return chunk_a_rank("sliced-reduce-scatter", size, steps, REDUCE_SCATTER)


def all_gather(size: int) -> Schedule:
    """Return the second half of the all-reduce: rank r begins with slice r."""

    def steps(rank: int) -> Iterator[Step]:
        peers = others(rank, size)
        if peers:
            yield Step(_slices(peers, [rank] * len(peers)), _slices(peers, peers))

    return chunk_a_rank("sliced-all-gather", size, steps, ALL_GATHER)


def others(rank: int, size: int) -> list[int]:
    """Return all other ranks, from rank + 1 on."""
    return [(rank + k) % size for k in range(1, size)]


def _slices(peers: list[int], slices: list[int]) -> tuple[Move, ...]:
    return tuple(Move(peer, slice_index, slice_index + 1) for peer, slice_index in zip(peers, slices, strict=True))


def _scratch_chunk(source: int, rank: int, size: int) -> int:
    """Return the chunk in which ``rank`` keeps the contribution of ``source`` to its slice: its own lies in the buffer,
    others lie in scratch."""
    return rank if source == rank else (1 + source) * size + rank


def _additions(rank: int, size: int) -> Iterator[Step]:
    """Yield a step for each level of the tree. A sum of ranks a to b - 1 lies in the chunk of the contribution of a, or
    in the buffer if the rank's own contribution is in it."""
    width = 1
    while width < size:
        pairs = [(left, left + width) for left in range(0, size - width, 2 * width)]
        moves = [_addition(left, right, width, rank, size) for left, right in pairs]
        yield Step(tuple(send for send, _ in moves), tuple(recv for _, recv in moves))
        width *= 2


def _addition(left: int, right: int, width: int, rank: int, size: int) -> tuple[Move, Move]:
    a, b = (_scratch_chunk(rank if first <= rank < first + width else first, rank, size) for first in (left, right))
    source, target = (a, b) if b == rank else (b, a)
    return Move(rank, source, source + 1), Move(rank, target, target + 1, add=True)
