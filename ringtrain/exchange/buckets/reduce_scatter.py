"""The two halves of an all-reduce, prepared for the buckets of an arena: a reduce-scatter gives each owner its sums, an
all-gather brings the owners' results to every rank."""

from collections.abc import Sequence

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.arrays import Array
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Schedule, bounds
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.ranges import Piece, join
from ringtrain.memory.buckets import Bucket
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport


def schedule_name(algorithm: str, transport: Transport) -> str:
    """Return the schedule that ``algorithm`` names; for ``auto`` the one with the fewest steps within a node, and with
    the fewest peers between nodes."""
    if algorithm == AUTO:
        return "sliced" if transport.nodes == 1 else "ring"
    return algorithm


def execution(
    settings: ExchangeSettings,
    ops: Ops,
    schedule: Schedule,
    part: Array,
    tag: int,
    what: str,
    name: str = "",
    count: int | None = None,
    **options,
) -> Reduction:
    """Return the execution of a schedule on ``part``, under the guard, which calls it ``what`` of ``name``.

    count:   elements that all ranks name to the guard; None: those of ``part``
    options: of :class:`Execution`
    """
    transport, guard = settings.transport, settings.guard
    segment_bytes = settings.config.segment_bytes or segment_for(transport)
    run = Execution(schedule, transport, part, ops.add, tag, segment_bytes, ops, **options)
    return run if guard is None else guard.watch(run, "sum", part.dtype, count or part.size, what, name)


class ReduceScatterAllGather:
    """The halves of the schedule ``name``, on buckets of flat arrays over the arena. ``ops``: of the exchange's
    stream."""

    def __init__(self, name: str, settings: ExchangeSettings, ops: Ops, buckets: Sequence[Bucket]):
        self._settings, self._ops, self._buckets = settings, ops, buckets
        self._scatter = make_schedule(name, settings.transport.size, REDUCE_SCATTER)
        self._gather = make_schedule(name, settings.transport.size, ALL_GATHER)

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
        tagged = enumerate(self._buckets, round * len(self._buckets))
        return [
            execution(self._settings, self._ops, schedule, buffer[b.start : b.stop], tag, what, b.name)
            for tag, b in tagged
        ]


def _owners(schedule: Schedule) -> list[int]:
    assert schedule.owner is not None  # every half has owners
    return [schedule.owner(chunk) for chunk in range(schedule.chunks)]


def _owned(schedule: Schedule, bucket: Bucket, rank: int) -> list[Piece]:
    edges = [bucket.start + edge for edge in bounds(bucket.stop - bucket.start, schedule.chunks)]
    return [(edges[i], edges[i + 1]) for i, owner in enumerate(_owners(schedule)) if owner == rank]
