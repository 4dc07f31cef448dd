"""The hierarchical all-reduce: first within nodes, then across nodes, then within again. The bytes on a node's network
interface do not grow with the ranks in the node.

Steps: as many as the inner reduce-scatter, the outer all-reduce and the inner all-gather have together. Bytes, for m
nodes of g ranks with rings at both levels: a rank sends 2(g - 1)/g · n within its node and 2(m - 1)/m · n/g to other
nodes, so that an interface carries 2(m - 1)/m · n.

The buffer is cut into slices, as many as the widest node's reduce-scatter has chunks: g, for most algorithms.

1.  Reduce-scatter within each node, all nodes at once: each local rank holds the node's sum of its slices.
2.  All-reduce across nodes, one for each slice, among the local ranks that carry it: one on each node. Every local
    rank works, each for its own slices.
3.  All-gather within each node.

Two nodes of two ranks, slices a b, contributions 0 1 | 2 3::

                 rank 0        rank 1      |   rank 2        rank 3
    scatter      a01           b01         |   a23           b23
    across       A     <-------------------------> A
                               B     <-------------------------> B
    gather       A B           A B         |   A B           A B

Nodes may be uneven: slice l of a node with g ranks is carried by local rank l mod g, so that a small node's ranks
carry several slices. With an inner algorithm whose sum ends on one rank (tree, star) that rank, the node's leader,
carries everything, as in CaffeOnSpark.

It is a composition of other schedules: the inner algorithm adds each slice within nodes, the outer one across nodes.

Source: Goyal et al., Accurate, large minibatch SGD, Facebook 2017, section 4; Sergeev & Del Balso, Horovod, Uber
2018, and its hierarchical all-reduce; Feng, Shi & Jain, CaffeOnSpark, Yahoo 2016, for the leader.
"""

from collections.abc import Callable, Sequence

from ringtrain.collectives.compose import concat, embed
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.topology import Topology

Builder = Callable[[int], Schedule]


def hierarchical(name: str, topology: Topology, inner: tuple[Builder, Builder], outer: Builder) -> Schedule:
    """Return a hierarchical all-reduce. ``inner``: a reduce-scatter and its all-gather, for any number of ranks;
    ``outer``: an all-reduce."""
    scatters = [inner[0](len(ranks)) for ranks in topology.nodes]
    gathers = [inner[1](len(ranks)) for ranks in topology.nodes]
    across = outer(len(topology.nodes))
    slices = max(part.chunks for part in scatters)
    chunks = slices * across.chunks

    def within(parts: Sequence[Schedule]) -> list[Schedule]:
        return [
            embed(part, ranks, _chunk_spans(part, slices, across.chunks), topology.size, chunks)
            for part, ranks in zip(parts, topology.nodes, strict=True)
        ]

    def between(number: int) -> Schedule:
        carriers = [
            ranks[part.owner(_chunk_of(number, part))] for part, ranks in zip(scatters, topology.nodes, strict=True)
        ]
        first = number * across.chunks
        spans = [[(first + i, first + i + 1)] for i in range(across.chunks)]
        return embed(across, carriers, spans, topology.size, chunks)

    return concat(name, within(scatters) + [between(number) for number in range(slices)] + within(gathers))


def _chunk_of(number: int, part: Schedule) -> int:
    """Return the chunk of a node's reduce-scatter that holds this slice. Slices are dealt out in the order of
    owners."""
    return sorted(range(part.chunks), key=part.owner)[number % part.chunks]


def _chunk_spans(part: Schedule, slices: int, width: int) -> list[list[tuple[int, int]]]:
    """Return, for each chunk of a node's schedule, the spans of its slices, each ``width`` chunks of the whole."""
    spans: list[list[tuple[int, int]]] = [[] for _ in range(part.chunks)]
    for number in range(slices):
        spans[_chunk_of(number, part)].append((number * width, (number + 1) * width))
    return spans
