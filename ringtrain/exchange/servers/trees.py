"""Sums to servers, and weights back, prepared for the buckets of an arena: each bucket has one server, and trees lead
to it and from it (:mod:`ringtrain.collectives.algorithms.rooted`)."""

from collections.abc import Callable, Sequence

from ringtrain.collectives.algorithms import rooted
from ringtrain.collectives.algorithms.rooted import RootedTree
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.shared_memory import topology_of
from ringtrain.exchange import texts
from ringtrain.monitor.guard import Guard
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport

Tree = Callable[[int, Sequence[int]], RootedTree]  # (server, members)


def tree_of(transport: Transport, levels: int) -> Tree:
    """Straight, or by way of nodes where there are two levels. Collective then."""
    if levels == 1:
        return lambda root, members: rooted.straight(root, members, transport.size)
    node_of = topology_of(transport).node_of()
    return lambda root, members: rooted.by_nodes(root, members, node_of)


class ReductionTrees:
    """owned: (server, bucket), in the order in which sums start"""

    def __init__(
        self,
        transport: Transport,
        ops,
        owned: Sequence[tuple[int, Bucket]],
        tree: Tree,
        segment_bytes: int | None = None,
        guard: Guard | None = None,
    ):
        self._transport, self._ops, self._owned, self._tree, self._guard = transport, ops, owned, tree, guard
        self._segment_bytes = segment_bytes or segment_for(transport)

    def sums(self, buffer, members: Sequence[int], round: int) -> list[Reduction]:
        """For each bucket what brings the sum over ``members`` to its server. ``round`` tells the messages of several
        uses from one another."""
        return self._prepare(texts.SUM_AT_SERVER, rooted.reduce, buffer, members, round)

    def spreads(self, buffer, members: Sequence[int], round: int) -> list[Reduction]:
        """For each bucket what brings it from its server to ``members``."""
        return self._prepare(texts.SPREAD_FROM_SERVER, rooted.broadcast, buffer, members, round)

    def _prepare(self, what: str, half, buffer, members, round: int) -> list[Reduction]:
        schedules = {server: half(self._tree(server, members)) for server in {server for server, _ in self._owned}}
        first = round * len(self._owned)
        return [
            self._watched(what, schedules[server], buffer, bucket, first + place)
            for place, (server, bucket) in enumerate(self._owned)
        ]

    def _watched(self, what: str, schedule: Schedule, buffer, bucket: Bucket, tag: int) -> Reduction:
        execution = Execution(
            schedule,
            self._transport,
            buffer[bucket.start : bucket.stop],
            self._ops.add,
            tag=tag,
            segment_bytes=self._segment_bytes,
            device=self._ops,
        )
        if self._guard is None:
            return execution
        return self._guard.watch(execution, "sum", buffer.dtype, bucket.stop - bucket.start, what, bucket.name)
