"""Sums of shards in one tree, bitwise the same at any number of ranks: to a strategy what
:class:`ringtrain.exchange.buckets.bucketed_allreduce.BucketedAllReduce` is.

A rank adds the gradients of its shards as they come, as far as the tree allows
(:mod:`ringtrain.exchange.buckets.shard_sums`). What it is left with, its partials, is exchanged, and added by owners of
slices in the order of the tree (:mod:`ringtrain.collectives.algorithms.canonical`): the last partial lies in the arena,
the others in lanes like it.

How, is a rule of names and places, and never of times: in memory that all ranks share, where there is one node and it
has that; or else by messages. A schedule that is named is taken where it is proved to add as the tree does. The bits
depend on none of this.
"""

from collections.abc import Sequence

from ringtrain.allreduce.catalogue import AUTO, check_algorithm, schedule_for
from ringtrain.collectives.algorithms.canonical import NAME, canonical
from ringtrain.collectives.algorithms.shards import shard_range
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.fused_plan import canonical_plan
from ringtrain.collectives.execution.mapped import Mapped
from ringtrain.collectives.execution.reduction import NATIVE, EmptyReduction, Reduction
from ringtrain.collectives.proof.addition_order import prove, qualifying
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.shared_memory import MAPPED, is_shared, unavailable
from ringtrain.errors import ConfigError, ScheduleError
from ringtrain.exchange import texts
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.shard_sums import ShardSums
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Transport


class ReproducibleAllReduce:
    """Prepares sums of the gradients of shards in one order, whatever the number of ranks.

    ``shards``: those of this rank, start:stop. ``nbytes``: once bound, its memory besides the buffer. Raises
    ConfigError for more ranks than shards, and for an algorithm that adds in another order. Collective.
    """

    exact, state_is_local = True, True
    required_names, optional_names = (), ()

    def __init__(self, settings: ExchangeSettings):
        transport, count, algorithm = settings.transport, settings.config.shards, settings.config.algorithm
        check_ranks(transport.size, count)
        self._count, self._transport, self._ops = count, transport, settings.ops
        self._summing = BucketedAllReduce(settings.with_options(algorithm=AUTO))
        self._mapped, self._schedule = algorithm in (AUTO, MAPPED), _schedule(algorithm, transport, count)
        self.shards = shard_range(transport.rank, transport.size, count)
        self.header, self.notes = texts.REPRODUCIBLE_OVER(shards=count), []

    def bind(self, spans, buffer) -> Reducer:
        """The sums of ``buffer``, a flat array over the arena of these spans. Collective."""
        transport, summing = self._transport, self._summing
        further = max(map(self._schedule.inputs_of, range(transport.size))) - 1
        self._lanes = [transport.allocate(buffer.size, buffer.dtype) for _ in range(further)]
        self._folding = ShardSums(self._ops, buffer, self.shards, self._count, self._lanes, transport.scratch)
        self.nbytes = self._folding.nbytes
        buckets = summing.buckets(spans, buffer.dtype)
        by_messages = self._why_messages([buffer, *self._lanes], range(len(buckets)))
        sums = [self._prepare(buffer, bucket, tag, not by_messages) for tag, bucket in enumerate(buckets)]
        reducer = summing.make_reducer(buckets, sums)
        self.notes = [self._say(by_messages), *summing.notes]
        return reducer

    def shard_grad_ready(self, span) -> None:
        """The span's gradient of this rank's next shard lies in the buffer."""
        self._folding.add(span)

    def _why_messages(self, arrays: Sequence, tags: Sequence[int]) -> str | None:
        """Why sums are not made in shared memory; None where they are. Collective."""
        transport = self._transport
        if not self._mapped:
            return texts.AS_ASKED
        if transport.size == 1 or transport.nodes > 1:
            return texts.ONE_RANK if transport.size == 1 else texts.SEVERAL_NODES(nodes=transport.nodes)
        return next(filter(None, [unavailable(transport, array, MAPPED, tags) for array in arrays]), None)

    def _say(self, by_messages: str | None) -> str:
        """For the run's header."""
        how = texts.IN_SHARED_MEMORY
        if by_messages:
            how = texts.OVER_MESSAGES(schedule=self._schedule.name, why=by_messages)
        return texts.REPRODUCIBLE(shards=self._count, how=how)

    def _prepare(self, buffer, bucket: Bucket, tag: int, mapped: bool) -> Reduction:
        """The sum of a bucket, watched."""
        count = bucket.stop - bucket.start
        if not count:
            return EmptyReduction()
        part, *lanes = (array[bucket.start : bucket.stop] for array in (buffer, *self._lanes))
        made = self._in_place(part, lanes, tag) if mapped else self._sent(part, lanes, tag)
        guard = self._summing.guard
        return made if guard is None else guard.watch(made, "sum", buffer.dtype, count, of=bucket.name)

    def _in_place(self, part, lanes: Sequence, tag: int) -> Mapped:
        transport, own = self._transport, self._summing.streams.own
        fused = canonical_plan(transport.size, self._count)
        twins = [transport.peer_views(array) for array in (part, *lanes)]
        made = Mapped(fused, transport, twins[0], transport.signal_counter(tag), own.add, own, inputs=twins[1:])
        made.algorithm = NAME
        return made

    def _sent(self, part, lanes: Sequence, tag: int) -> Execution:
        transport, own = self._transport, self._summing.streams.own
        segment = self._summing.segment_bytes or segment_for(transport)
        brought = lanes[: self._schedule.inputs_of(transport.rank) - 1]
        return Execution(self._schedule, transport, part, own.add, tag, segment, own, inputs=brought)

    def rehearse(self, nothing) -> None:
        self._summing.rehearse(nothing)
        self._folding.rehearse()

    def before(self, iteration: int) -> None:
        """All iterations are alike."""

    def state(self) -> dict:
        return {}

    def restore(self, state: dict) -> None:
        """There is nothing to restore."""


def check_ranks(size: int, count: int) -> None:
    """Raises ConfigError for more ranks than shards."""
    if size > count:
        raise ConfigError(texts.MORE_RANKS_THAN_SHARDS(shards=count, size=size))


def _schedule(algorithm: str, transport: Transport, count: int) -> Schedule:
    """What goes by messages, if anything does. Collective. Raises ConfigError, UsageError."""
    size = transport.size
    if algorithm in (AUTO, MAPPED, NAME):
        return canonical(size, count)
    check_algorithm(algorithm)
    why = texts.NO_PROOF
    if algorithm != NATIVE and not is_shared(algorithm):
        schedule = schedule_for(algorithm, transport)
        try:
            prove(schedule, count)
        except ScheduleError as error:
            why = str(error)
        else:
            return schedule
    names = ", ".join(qualifying(size, count))
    others = texts.OR_ONE_OF(names=names) if names else ""
    known = {"auto": AUTO, "mapped": MAPPED, "canonical": NAME, "others": others}
    raise ConfigError(texts.OTHER_TREE(algorithm=algorithm, shards=count, size=size, why=why, **known))
