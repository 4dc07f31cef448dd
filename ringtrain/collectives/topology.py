"""The placement of ranks on nodes, which hierarchical schedules and costs depend on."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.errors import UsageError


@dataclass(frozen=True, slots=True)
class Topology:
    """Ranks by node: ``nodes[i]`` are the ranks of node i, by local rank. Nodes may be uneven, and may hold any ranks.

    Raises UsageError if a node is empty, or if the ranks are not 0, 1, 2 and so on, each once.
    """

    nodes: tuple[tuple[int, ...], ...]

    def __post_init__(self):
        if not self.nodes:
            raise UsageError("there are 0 ranks: at least 1 is needed")
        for number, ranks in enumerate(self.nodes):
            if not ranks:
                raise UsageError(f"node {number} has no ranks: every node needs at least 1")
        every = sorted(rank for node in self.nodes for rank in node)
        if every != list(range(len(every))):
            raise UsageError(f"the nodes hold ranks {every}: wanted 0 to {len(every) - 1}, each once")

    @property
    def size(self) -> int:
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of ranks on each node."""
        return tuple(map(len, self.nodes))

    def node_of(self) -> list[int]:
        homes = {rank: number for number, ranks in enumerate(self.nodes) for rank in ranks}
        return [homes[rank] for rank in range(self.size)]


def topology_from_nodes(node_of: Sequence[int]) -> Topology:
    """Return the topology for the node of each rank, nodes numbered from 0."""
    nodes = range(max(node_of, default=-1) + 1)
    return Topology(tuple(tuple(rank for rank, home in enumerate(node_of) if home == node) for node in nodes))


def filled(counts: Sequence[int]) -> Topology:
    """Return the topology with ``counts[i]`` ranks on node i, one node filled after the other."""
    starts = [sum(counts[:node]) for node in range(len(counts))]
    return Topology(tuple(tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True)))


def even(size: int, nodes: int = 1) -> Topology:
    """Return the topology of ``size`` ranks on ``nodes`` nodes, neighbours together, as even as possible.

    Raises UsageError for fewer ranks than nodes.
    """
    if size < 1:
        raise UsageError(f"there are {size} ranks: at least 1 is needed")
    if not 1 <= nodes <= size:
        raise UsageError(f"{size} ranks cannot run on {nodes} nodes: wanted 1 to {size} nodes")
    return topology_from_nodes([rank * nodes // size for rank in range(size)])


def requested(ranks: int | None, nodes: Sequence[int] | None) -> Topology:
    """Return the topology that a user asks for: a number of ranks on a number of nodes, or the ranks of each node, or
    both if they agree.

    Raises UsageError if they do not agree, and if no such topology exists.
    """
    if not nodes:
        return even(4 if ranks is None else ranks)
    if len(nodes) == 1:
        return even(nodes[0] if ranks is None else ranks, nodes[0])
    topology = filled(nodes)
    if ranks not in (None, topology.size):
        ranks_by_node = ", ".join(map(str, nodes))
        raise UsageError(
            f"nodes of {ranks_by_node} ranks have {topology.size} ranks in all, not {ranks}: give only one of the two"
        )
    return topology
