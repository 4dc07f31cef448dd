"""The canonical all-reduce: sums of shards in one tree (:mod:`ringtrain.collectives.algorithms.shards`), at any number
of ranks.

Steps: 2, for any p. Bytes: a rank with l partials sends (l + 1)(p - 1)/p · n; with one partial, that is the minimum. It
is the sliced all-reduce (:mod:`ringtrain.collectives.algorithms.sliced`) with all partials of a rank in place of one
contribution.

The buffer is cut into p slices, and rank r owns slice r. The buffer holds a rank's last partial, and later the sum;
further input arrays hold the earlier partials.

1.  Every rank sends to each other rank that rank's slice of all of its partials, raw, to rank r + 1 first.
2.  Each owner adds the partials of all ranks to its slice in the order of the tree. No message is waited for.
3.  Every rank sends its slice, which is now whole, to each other rank, from r + 1 on.

Three ranks, eight shards; b is the slice of rank 1::

    rank 0    01              b01 to 1
    rank 1    23   4          arrived b01 and b5 b67:  (b01 + b23) + ((b4 + b5) + b67)
    rank 2    5    67         b5 and b67 to 1

Each addition is one node of the tree, on one rank, and its operands are the children of that node. So the bits of a sum
depend neither on p, nor on the owner or the bounds of a slice.
"""

from collections.abc import Iterator
from itertools import chain

from ringtrain.collectives.algorithms import sliced
from ringtrain.collectives.algorithms.shards import Node, are_siblings, partials
from ringtrain.collectives.compose import all_reduce
from ringtrain.collectives.schedule import REDUCE_SCATTER, Move, Schedule, Step
from ringtrain.errors import UsageError

NAME = "canonical"


def canonical(size: int, shards: int) -> Schedule:
    """Return an all-reduce of the sums of ``shards`` shards. Raises UsageError for more ranks than shards."""
    if size > shards:
        raise UsageError(f"{size} ranks cannot have a shard each of {shards}: give more shards or fewer ranks")
    return all_reduce(NAME, canonical_reduce_scatter(size, shards), sliced.all_gather(size))


def canonical_reduce_scatter(size: int, shards: int) -> Schedule:
    """Return the first half of the all-reduce: rank r ends with the sum of slice r."""
    brought = [partials(rank, size, shards) for rank in range(size)]

    def steps(rank: int) -> Iterator[Step]:
        chunks, others = _partial_chunks(rank, brought), sliced.others(rank, size)
        if others:
            sends = (_one(peer, number * size + peer) for peer in others for number in _inputs(brought[rank]))
            yield Step(tuple(sends), tuple(_one(peer, at) for peer in others for at in chunks[peer]))
        yield from _additions(rank, brought, chunks, shards)

    return Schedule(
        f"{NAME}-reduce-scatter",
        size,
        size,
        steps,
        lambda rank: (size - 1) * len(brought[rank]),
        REDUCE_SCATTER,
        lambda chunk: chunk,
        lambda rank: len(brought[rank]),
    )


def _one(peer: int, chunk: int, add: bool = False) -> Move:
    return Move(peer, chunk, chunk + 1, add)


def _inputs(nodes: list[Node]) -> list[int]:
    """Return the input array of each of a rank's partials: the last partial lies in the buffer, which is input 0."""
    return [*range(1, len(nodes)), 0]


def _partial_chunks(rank: int, brought: list[list[Node]]) -> list[list[int]]:
    """Return the chunks that hold the partials of all ranks on ``rank``, for its own slice: its own partials in its
    input arrays, other ranks' partials behind them in scratch."""
    size, at, chunks = len(brought), len(brought[rank]), []
    for source, nodes in enumerate(brought):
        if source == rank:
            chunks.append([number * size + rank for number in _inputs(nodes)])
        else:
            chunks.append([(at + i) * size + rank for i in range(len(nodes))])
            at += len(nodes)
    return chunks


def _additions(rank: int, brought: list[list[Node]], chunks: list[list[int]], shards: int) -> Iterator[Step]:
    """Yield the additions one after another, from the first shard on, each as soon as the tree allows it. A sum lies in
    the chunk of its left half, or in the buffer, if one half lies there."""
    sums: list[tuple[Node, int]] = []
    for node, at in zip(chain(*brought), chain(*chunks), strict=True):
        while sums and are_siblings(sums[-1][0], node, shards):
            (start, _), left = sums.pop()
            source, target = (left, at) if at == rank else (at, left)
            yield Step((_one(rank, source),), (_one(rank, target, add=True),))
            node, at = (start, node[1]), target
        sums.append((node, at))
