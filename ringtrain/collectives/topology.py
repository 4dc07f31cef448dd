"""Which rank runs on which node: what a hierarchical schedule needs to know, and what a cost depends on."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.collectives import texts
from ringtrain.errors import UsageError


@dataclass(frozen=True, slots=True)
class Topology:
    """``nodes[i]`` are the ranks of node i, by local rank. Nodes may be uneven, and need not hold neighbours.

    Raises UsageError where a node is empty, or where the ranks are not 0, 1, 2 and so on, each once.
    """

    nodes: tuple[tuple[int, ...], ...]

    def __post_init__(self):
        if not self.nodes:
            raise UsageError(texts.NO_RANKS(size=0))
        for number, ranks in enumerate(self.nodes):
            if not ranks:
                raise UsageError(texts.EMPTY_NODE(node=number))
        ranks = sorted(rank for node in self.nodes for rank in node)
        if ranks != list(range(len(ranks))):
            raise UsageError(texts.NOT_EACH_ONCE(ranks=ranks, last=len(ranks) - 1))

    @property
    def size(self) -> int:
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """Ranks on each node."""
        return tuple(map(len, self.nodes))

    def node_of(self) -> list[int]:
        """The node of each rank."""
        homes = {rank: number for number, ranks in enumerate(self.nodes) for rank in ranks}
        return [homes[rank] for rank in range(self.size)]


def placed(node_of: Sequence[int]) -> Topology:
    """From the node of each rank, nodes numbered from 0."""
    return Topology(tuple(_ranks_on(node, node_of) for node in range(max(node_of, default=-1) + 1)))


def _ranks_on(node: int, node_of: Sequence[int]) -> tuple[int, ...]:
    return tuple(rank for rank, home in enumerate(node_of) if home == node)


def filled(counts: Sequence[int]) -> Topology:
    """``counts[i]`` ranks on node i, one node filled after the other."""
    starts = [sum(counts[:node]) for node in range(len(counts))]
    return Topology(tuple(tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True)))


def even(size: int, nodes: int = 1) -> Topology:
    """``size`` ranks on ``nodes`` nodes, neighbours together, as even as can be.

    Raises UsageError where there are fewer ranks than nodes.
    """
    if size < 1:
        raise UsageError(texts.NO_RANKS(size=size))
    if not 1 <= nodes <= size:
        raise UsageError(texts.TOO_MANY_NODES(size=size, nodes=nodes))
    return placed([rank * nodes // size for rank in range(size)])


def requested(ranks: int | None, nodes: Sequence[int] | None) -> Topology:
    """From what a person asks for: so many ranks on so many nodes, or the ranks of each node, or both if they agree.

    Raises UsageError where they do not, and where there is no such topology.
    """
    if not nodes:
        return even(4 if ranks is None else ranks)
    if len(nodes) == 1:
        return even(nodes[0] if ranks is None else ranks, nodes[0])
    topology = filled(nodes)
    if ranks not in (None, topology.size):
        told = ", ".join(map(str, nodes))
        raise UsageError(texts.NODES_DISAGREE(counts=told, total=topology.size, ranks=ranks))
    return topology
