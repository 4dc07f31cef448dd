"""Which rank runs on which node: what a hierarchical schedule needs to know, and what a cost depends on."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.errors import UsageError


@dataclass(frozen=True, slots=True)
class Topology:
    """``nodes[i]`` are the ranks of node i, by local rank. Nodes may be uneven, and need not hold neighbours.

    Raises UsageError where a node is empty, or where the ranks are not 0, 1, 2 and so on, each once.
    """

    nodes: tuple[tuple[int, ...], ...]

    def __post_init__(self):
        if not self.nodes:
            raise UsageError("there are 0 ranks: at least 1 is needed")
        for number, ranks in enumerate(self.nodes):
            if not ranks:
                raise UsageError(f"node {number} has no ranks: every node needs at least one")
        ranks = sorted(rank for node in self.nodes for rank in node)
        if ranks != list(range(len(ranks))):
            raise UsageError(f"the nodes hold ranks {ranks}: wanted 0 to {len(ranks) - 1}, each once")

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
        raise UsageError(f"there are {size} ranks: at least 1 is needed")
    if not 1 <= nodes <= size:
        raise UsageError(f"{size} ranks cannot run on {nodes} nodes: wanted 1 to {size} nodes")
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
        raise UsageError(f"nodes of {told} ranks have {topology.size} together, not {ranks}: leave one of them out")
    return topology
