"""The two halves of an all-reduce, prepared for the buckets of an arena: a reduce-scatter gives each owner its sums, an
all-gather brings the owners' results to every rank."""

from collections.abc import Sequence

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.arrays import Array
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Schedule, bounds
from ringtrain.exchange.update.ranges import Piece, join
from ringtrain.monitor.guard import Guard
from ringtrain.nn.buckets import Bucket
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport


def schedule_name(algorithm: str, transport: Transport) -> str:
    """Return the schedule that ``algorithm`` names; for ``auto`` the one with the fewest steps within a node, and with
    the fewest peers between nodes."""
    if algorithm == AUTO:
        return "sliced" if transport.nodes == 1 else "ring"
    return algorithm


class ReduceScatterAllGather:
    """The halves of the schedule ``name``, on buckets of flat arrays over the arena."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        ops: Ops,
        buckets: Sequence[Bucket],
        segment_bytes: int | None = None,
        guard: Guard | None = None,
    ):
        self._transport, self._ops, self._buckets, self._guard = transport, ops, buckets, guard
        self._segment_bytes = segment_bytes or segment_for(transport)
        self._scatter = make_schedule(name, transport.size, REDUCE_SCATTER)
        self._gather = make_schedule(name, transport.size, ALL_GATHER)

    @property
    def owners(self) -> list[int]:
        """Ranks, by the chunk that each owns."""
        return _owners(self._gather)

    def owned(self, rank: int) -> list[Piece]:
        """Return the elements whose sums ``rank`` ends with."""
        return join([piece for bucket in self._buckets for piece in _owned(self._scatter, bucket, rank)])

    def scatters(self, buffer: Array, round: int) -> list[Reduction]:
        """Return a reduce-scatter for each bucket; ``round`` separates the messages of several calls."""
        return self._prepare("reduce-scatter", self._scatter, buffer, round)

    def gathers(self, buffer: Array, round: int) -> list[Reduction]:
        """Return an all-gather for each bucket."""
        return self._prepare("all-gather", self._gather, buffer, round)

    def _prepare(self, what: str, schedule: Schedule, buffer: Array, round: int) -> list[Reduction]:
        first = round * len(self._buckets)
        return [
            self._half(what, schedule, buffer[bucket.start : bucket.stop], first + index, bucket.name)
            for index, bucket in enumerate(self._buckets)
        ]

    def _half(self, what: str, schedule: Schedule, part: Array, tag: int, name: str) -> Reduction:
        half = Execution(schedule, self._transport, part, self._ops.add, tag, self._segment_bytes, self._ops)
        return half if self._guard is None else self._guard.watch(half, "sum", part.dtype, part.size, what, name)


def _owners(schedule: Schedule) -> list[int]:
    assert schedule.owner is not None  # every half has owners
    return [schedule.owner(chunk) for chunk in range(schedule.chunks)]


def _owned(schedule: Schedule, bucket: Bucket, rank: int) -> list[Piece]:
    edges = [bucket.start + edge for edge in bounds(bucket.stop - bucket.start, schedule.chunks)]
    return [(edges[i], edges[i + 1]) for i, owner in enumerate(_owners(schedule)) if owner == rank]
