r"""The double binary tree all-reduce: two trees at once, each for half of the buffer, in segments. It takes few steps,
like a tree, and about as few bytes as the ring.

Steps: at most 4(k + h - 1) for p ranks, with k segments a tree and height h = floor(log2 p). Bytes: a rank sends at
most 2n over both trees. In one binary tree the leaves, half of all ranks, would send little and receive all. So there
are two trees, and a leaf of one is an inner rank of the other.

Both trees are binary trees in order: of positions 1 to p the odd ones are leaves, and a position whose lowest set bit
is b has its children b/2 below and b/2 above it, or as near above it as positions exist. Rank r has position r + 1 in
the first tree. In the second tree the ranks stand in reverse order if p is even, and one further if p is odd.

1.  Reduce. The first tree reduces the first half of the buffer to its root, the second tree the second half to its
    own, each half in k segments, one behind the other.
2.  Broadcast. Each tree sends its half back down.

Six ranks::

         3                 2             positions       4
       /   \             /   \                         /   \
      1     5           4     0                       2     6
     / \   /           / \     \                     / \   /
    0   2 4           5   3     1                   1   3 5

Which step does an edge use? Edges have two colours, so that the two edges from a rank's children differ, and the two to
its parents differ; such a colouring exists, since at most two edges meet on each side. Edges of one colour are used in
even steps, the other colour's in odd steps: a rank never receives two segments at once, nor sends two.

Each segment's sum is made once, on a root, and then copied, so that all ranks hold the same bits.

Source: Sanders, Speck & Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel
Computing 2009; Jeaugey, Massively scale your deep learning training with NCCL 2.4, NVIDIA 2019.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ringtrain.collectives.algorithms.timetable import TimedMessage, timed_steps
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Move, Schedule, Step

SEGMENTS = 4  # a tree; execution cuts them further


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of one of the two trees."""

    tree: int
    parent: int
    child: int


def reduce(size: int, segments: int = SEGMENTS) -> Schedule:
    """Return the first half of the all-reduce: each root ends with the sum of its tree's segments. It is a broadcast
    backwards in time."""
    times = timetable(size)
    last = max(times.values(), default=0)
    touching = _by_rank(times)

    def steps(rank: int) -> Iterator[Step]:
        return timed_steps(
            rank, [_message(e, last - times[e], j, segments, up=True) for e in touching[rank] for j in range(segments)]
        )

    def wire(rank: int) -> int:
        return segments * sum(edge.child == rank for edge in touching[rank])

    return Schedule("double-tree-reduce", size, 2 * segments, steps, wire, REDUCE_SCATTER, _owner(size, segments))


def broadcast(size: int, segments: int = SEGMENTS) -> Schedule:
    """Return the second half of the all-reduce: all ranks end with the segments of the roots."""
    times = timetable(size)
    touching = _by_rank(times)

    def steps(rank: int) -> Iterator[Step]:
        return timed_steps(rank, [_message(e, times[e], j, segments) for e in touching[rank] for j in range(segments)])

    def wire(rank: int) -> int:
        return segments * sum(edge.parent == rank for edge in touching[rank])

    return Schedule("double-tree-broadcast", size, 2 * segments, steps, wire, ALL_GATHER, _owner(size, segments))


def _message(edge: Edge, time: int, segment: int, segments: int, up: bool = False) -> TimedMessage:
    at, ends = edge.tree * segments + segment, (edge.parent, edge.child)
    source, target = reversed(ends) if up else ends
    send, recv = Move(target, at, at + 1), Move(source, at, at + 1, add=up)
    return TimedMessage((time + 2 * segment, 0), source, target, send, recv)


def _owner(size: int, segments: int):
    roots = [_rank(1 << (size.bit_length() - 1), tree, size) for tree in (0, 1)]
    return lambda chunk: roots[chunk // segments]


def _by_rank(edges) -> dict[int, list[Edge]]:
    touching = defaultdict(list)
    for edge in edges:
        touching[edge.parent].append(edge)
        touching[edge.child].append(edge)
    return touching


def timetable(size: int) -> dict[Edge, int]:
    """Return, for each edge of both trees, the time at which it carries the first segment of a broadcast: the first
    time of its colour after its parent has the segment."""
    edges = [edge for tree in (0, 1) for edge in edges_of(tree, size)]
    colours = _coloured(edges)
    times: dict[Edge, int] = {}
    had: dict[tuple[int, int], int] = {}  # (tree, rank) → when the first segment arrives
    for edge in edges:  # parents come before children
        earliest = had.get((edge.tree, edge.parent), -1) + 1
        times[edge] = had[edge.tree, edge.child] = earliest + (earliest + colours[edge]) % 2
    return times


def edges_of(tree: int, size: int) -> Iterator[Edge]:
    """Return the edges of a tree, from the root down."""
    above = [1 << (size.bit_length() - 1)]
    for position in above:
        for child in _children(position, size):
            above.append(child)
            yield Edge(tree, _rank(position, tree, size), _rank(child, tree, size))


def _children(position: int, size: int) -> list[int]:
    half = (position & -position) // 2
    if not half:
        return []
    right = half
    while right and position + right > size:
        right //= 2
    return [position - half] + ([position + right] if right else [])


def _rank(position: int, tree: int, size: int) -> int:
    if tree == 0:
        return position - 1
    return size - position if size % 2 == 0 else position % size


def _coloured(edges: list[Edge]) -> dict[Edge, int]:
    """Return 0 or 1 for each edge: two edges out of a rank differ, and two edges into a rank differ."""
    ends = defaultdict(list)
    for edge in edges:
        ends["out", edge.parent].append(edge)
        ends["in", edge.child].append(edge)
    colours: dict[Edge, int] = {}
    for first in edges:
        colours.setdefault(first, 0)
        reached = [first]
        for edge in reached:
            for other in ends["out", edge.parent] + ends["in", edge.child]:
                if other not in colours:
                    colours[other] = 1 - colours[edge]
                    reached.append(other)
    return colours
