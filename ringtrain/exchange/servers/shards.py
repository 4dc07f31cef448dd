"""The shards of the arena that servers own, and the reducers that carry them: gradients to the owner, weights back."""

from collections.abc import Callable, Sequence

from ringtrain.arrays import Array
from ringtrain.collectives.algorithms import rooted
from ringtrain.collectives.algorithms.rooted import RootedTree
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.shared_memory import topology_of
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.streams import stream_pair
from ringtrain.exchange.servers.ownership import buckets_of, divide_ownership, pieces_of
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.ranges import Piece
from ringtrain.nn.arena import Arena
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport

Tree = Callable[[int, Sequence[int]], RootedTree]  # (server, members)
Meanwhile = Callable[[], None] | None


class Shards:
    """The shard of each server, cut into buckets, and reducers along trees to the servers and from them.

    servers: how many there are
    whole:   no parameter is cut

    ``pieces``: the pieces of each parameter, by its name. ``free_tag``: the first tag that no reducer uses. All ranks
    ask for the same reducers in the same order.
    """

    def __init__(self, settings: ExchangeSettings, arena: Arena, servers: int, whole: bool):
        config, itemsize = settings.config, arena.weights.dtype.itemsize
        self.parts = divide_ownership(arena.spans, servers, whole)
        self.pieces = pieces_of(arena.spans, self.parts)
        self._owned = buckets_of(self.parts, itemsize, config.bucket_bytes)
        self._settings, self.streams = settings, stream_pair(settings.ops)
        self._tree = _tree_of(settings.transport, config.server_levels)
        self.free_tag = 0

    def piece_of(self, rank: int) -> list[Piece]:
        """The elements that ``rank`` owns: one piece, or none."""
        return [(part[0].start, part[-1].stop) for part in self.parts[rank : rank + 1]]

    def buckets_of(self, server: int) -> list[Bucket]:
        """The buckets of one server, the arena's lowest first."""
        return [bucket for owner, bucket in reversed(self._owned) if owner == server]

    def indices_of(self, server: int) -> list[int]:
        """Indices into the buckets of every reducer of those that ``server`` owns, the arena's lowest first."""
        return [index for index in reversed(range(len(self._owned))) if self._owned[index][0] == server]

    def sums(self, buffer: Array, members: Sequence[int], meanwhile: Meanwhile = None) -> Reducer:
        """Return the reducer that brings the sums over ``members`` to the servers; ``meanwhile``: called while it
        waits."""
        return self._reducer("sum at a server", rooted.reduce_to_root, buffer, members, meanwhile)

    def broadcasts(
        self, buffer: Array, members: Sequence[int], meanwhile: Meanwhile = None, lowest_first: bool = False
    ) -> Reducer:
        """Return the reducer that brings each server's part of ``buffer`` to ``members``."""
        half = rooted.broadcast_from_root
        return self._reducer("spread from a server", half, buffer, members, meanwhile, lowest_first)

    def _reducer(
        self,
        what: str,
        half: Callable[[RootedTree], Schedule],
        buffer: Array,
        members: Sequence[int],
        meanwhile: Meanwhile,
        lowest_first: bool = False,
    ) -> Reducer:
        schedules = {server: half(self._tree(server, members)) for server in range(len(self.parts))}
        first, self.free_tag = self.free_tag, self.free_tag + len(self._owned)
        reductions = [
            self._reduction(what, schedules[server], buffer, bucket, first + index, meanwhile)
            for index, (server, bucket) in enumerate(self._owned)
        ]
        buckets, deadline_s = [bucket for _, bucket in self._owned], self._settings.config.deadline_s
        order = range(len(buckets))[::-1] if lowest_first else None
        return Reducer(buckets, reductions, deadline_s, streams=self.streams, order=order)

    def _reduction(
        self, what: str, schedule: Schedule, buffer: Array, bucket: Bucket, tag: int, meanwhile: Meanwhile
    ) -> Reduction:
        part = buffer[bucket.start : bucket.stop]
        transport, ops, guard = self._settings.transport, self.streams.exchange, self._settings.guard
        segment_bytes = self._settings.config.segment_bytes or segment_for(transport)
        execution = Execution(schedule, transport, part, ops.add, tag, segment_bytes, ops, meanwhile=meanwhile)
        return execution if guard is None else guard.watch(execution, "sum", part.dtype, part.size, what, bucket.name)


def _tree_of(transport: Transport, levels: int) -> Tree:
    """Straight trees; with two levels by way of the heads of nodes, and collective."""
    if levels == 1:
        return lambda root, members: rooted.straight(root, members, transport.size)
    node_of = topology_of(transport).node_of()
    return lambda root, members: rooted.by_nodes(root, members, node_of)
