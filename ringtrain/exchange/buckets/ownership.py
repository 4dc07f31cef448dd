"""The owners of the arena's elements, and the reducers between them and all ranks: sums go to the owners, their results
come back. Each bucket has its own two schedules, which are the halves of an all-reduce."""

from collections.abc import Callable, Sequence

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.arrays import Array
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Schedule, bounds
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.streams import stream_pair
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.ranges import Piece, join
from ringtrain.memory.arena import Arena
from ringtrain.memory.buckets import Bucket, make_buckets
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport

ScheduleOf = Callable[[int, Sequence[int]], Schedule]  # (index of a bucket, the ranks that take part)
Meanwhile = Callable[[], None] | None


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


def executions(
    settings: ExchangeSettings,
    ops: Ops,
    schedules: Sequence[Schedule],
    buffer: Array,
    buckets: Sequence[Bucket],
    tag: int,
    what: str,
    **options,
) -> list[Reduction]:
    """Return the execution of each schedule on its bucket of ``buffer``, under tags from ``tag`` on."""
    return [
        execution(settings, ops, schedule, buffer[bucket.start : bucket.stop], number, what, bucket.name, **options)
        for number, (schedule, bucket) in enumerate(zip(schedules, buckets, strict=True), tag)
    ]


def owners(schedule: Schedule) -> list[int]:
    """Return the rank that owns each chunk of a half."""
    return [schedule.owner(chunk) for chunk in range(schedule.chunks)]


class Ownership:
    """The owners of each bucket, and reducers of arrays over the arena. All ranks ask for the same ones in one order.

    buckets: from the arena's end to its start
    pieces:  the spans of the buckets that make up each parameter, by its name
    reduce, spread: the schedules of a bucket: the first ends with the sum of some ranks at the owners, the second
             brings the owners' elements to some ranks
    divides: whether a parameter may have several owners
    serves:  whether owners update and send within the next forward pass, with ``--overlap forward``
    names:   of the two schedules, for the guard

    ``free_tag``: the first tag that no reducer uses.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        buckets: Sequence[Bucket],
        pieces: dict[str, list[Span]],
        reduce: ScheduleOf,
        spread: ScheduleOf,
        divides: bool,
        serves: bool = False,
        names: tuple[str, str] = ("reduce-scatter", "all-gather"),
    ):
        self.buckets, self.pieces, self.divides, self.serves = buckets, pieces, divides, serves
        self._settings, self._reduce, self._spread, self._names = settings, reduce, spread, names
        self.streams, self.free_tag = stream_pair(settings.ops), 0

    def owned(self, rank: int) -> list[Piece]:
        """Return the elements that ``rank`` owns."""
        return join([piece for index in range(len(self.buckets)) for piece in self._owned(index, rank)])

    def indices_of(self, rank: int) -> list[int]:
        """Return the indices of the buckets of which ``rank`` owns elements, the arena's lowest first."""
        return [index for index in reversed(range(len(self.buckets))) if self._owned(index, rank)]

    def buckets_of(self, rank: int) -> list[Bucket]:
        """Return these buckets."""
        return [self.buckets[index] for index in self.indices_of(rank)]

    def _owned(self, index: int, rank: int) -> list[Piece]:
        bucket, schedule = self.buckets[index], self._spread(index, ())
        edges = [bucket.start + edge for edge in bounds(bucket.stop - bucket.start, schedule.chunks)]
        return join([(edges[i], edges[i + 1]) for i, owner in enumerate(owners(schedule)) if owner == rank])

    def sums(self, buffer: Array, members: Sequence[int], meanwhile: Meanwhile = None, early: bool = True) -> Reducer:
        """Return the reducer that brings the sums over ``members`` to the owners; ``meanwhile``: called while it waits;
        ``early``: of :class:`Reducer`."""
        return self._reducer(self._names[0], self._reduce, buffer, members, meanwhile, early)

    def spreads(
        self, buffer: Array, members: Sequence[int], meanwhile: Meanwhile = None, lowest_first: bool = False
    ) -> Reducer:
        """Return the reducer that brings the owners' elements of ``buffer`` to ``members``."""
        order = range(len(self.buckets))[::-1] if lowest_first else None
        return self._reducer(self._names[1], self._spread, buffer, members, meanwhile, order=order)

    def _reducer(
        self,
        what: str,
        schedule_of: ScheduleOf,
        buffer: Array,
        members: Sequence[int],
        meanwhile: Meanwhile,
        early: bool = True,
        order: Sequence[int] | None = None,
    ) -> Reducer:
        schedules = [schedule_of(index, members) for index in range(len(self.buckets))]
        how = self._settings, self.streams.exchange
        reductions = executions(*how, schedules, buffer, self.buckets, self.free_tag, what, meanwhile=meanwhile)
        self.free_tag += len(reductions)
        return Reducer(self.buckets, reductions, self._settings.config.deadline_s, self.streams, early, order)


def by_schedule(name: str, settings: ExchangeSettings, arena: Arena) -> Ownership:
    """Return the ownership of the all-reduce ``name`` between its halves: slices of each bucket, or all on one rank."""
    size, itemsize = settings.transport.size, arena.grads.dtype.itemsize
    reduce, spread = (make_schedule(name, size, goal) for goal in (REDUCE_SCATTER, ALL_GATHER))
    return Ownership(
        settings,
        make_buckets(arena.spans, itemsize, settings.config.bucket_bytes),
        {span.name: [span] for span in arena.spans},
        lambda index, members: reduce,
        lambda index, members: spread,
        divides=len(set(owners(spread))) > 1,
    )
