"""The two halves of an all-reduce, prepared for the buckets of an arena: the sums of each bucket are scattered among
their owners, and what owners made of them is gathered."""

from collections.abc import Sequence

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Schedule, bounds
from ringtrain.exchange.update.ranges import Piece, join
from ringtrain.monitor.guard import Guard
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport


def schedule_name(algorithm: str, transport: Transport) -> str:
    """The schedule that ``algorithm`` names; of ``auto`` the one of fewest steps within a node, and of fewest peers
    between nodes."""
    if algorithm == AUTO:
        return "sliced" if transport.nodes == 1 else "ring"
    return algorithm


class ReduceScatterAllGather:
    """Of the schedule ``name``, on buckets of flat arrays over the arena."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        ops,
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
        """The rank that owns each chunk."""
        return [self._gather.owner(chunk) for chunk in range(self._gather.chunks)]

    def owned(self, rank: int) -> list[Piece]:
        """The elements whose sums ``rank`` ends with."""
        return join([piece for bucket in self._buckets for piece in _owned(self._scatter, bucket, rank)])

    def scatters(self, buffer, round: int) -> list[Reduction]:
        """A reduce-scatter for each bucket. ``round`` tells the messages of several uses from one another."""
        return self._prepare("reduce-scatter", self._scatter, buffer, round)

    def gathers(self, buffer, round: int) -> list[Reduction]:
        """An all-gather for each bucket."""
        return self._prepare("all-gather", self._gather, buffer, round)

    def _prepare(self, what: str, schedule: Schedule, buffer, round: int) -> list[Reduction]:
        first = round * len(self._buckets)
        return [
            self._watched(what, self._half(schedule, buffer[bucket.start : bucket.stop], first + place), buffer, bucket)
            for place, bucket in enumerate(self._buckets)
        ]

    def _half(self, schedule: Schedule, part, tag: int) -> Execution:
        return Execution(
            schedule,
            self._transport,
            part,
            self._ops.add,
            tag=tag,
            segment_bytes=self._segment_bytes,
            device=self._ops,
        )

    def _watched(self, what: str, half: Execution, buffer, bucket: Bucket) -> Reduction:
        if self._guard is None:
            return half
        return self._guard.watch(half, "sum", buffer.dtype, bucket.stop - bucket.start, what, bucket.name)


def _owned(schedule: Schedule, bucket: Bucket, rank: int) -> list[Piece]:
    edges = [bucket.start + edge for edge in bounds(bucket.stop - bucket.start, schedule.chunks)]
    return [(edges[i], edges[i + 1]) for i in range(schedule.chunks) if schedule.owner(i) == rank]
