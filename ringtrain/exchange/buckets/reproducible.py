"""All-reduces of the gradients of shards, added in one tree: bitwise the same at any number of ranks. A strategy uses
them as it uses :class:`ringtrain.exchange.buckets.bucketed_allreduce.BucketedAllReduce`.

A rank adds the gradients of its shards as they come, as far as the tree allows (:class:`ShardSums`). The rest, its
partial sums, is exchanged, and owners of slices add it in the order of the tree
(:mod:`ringtrain.collectives.algorithms.canonical`). The last partial sum lies in the arena, the others in further
inputs like it.

Names and places alone decide how, never times: within one node in memory that all ranks share, else over messages. The
bits do not depend on it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.arrays import Array
from ringtrain.collectives.algorithms.canonical import NAME, canonical
from ringtrain.collectives.algorithms.shards import Node, folds, shard_range, slots
from ringtrain.collectives.execution.mapped import make_mapped
from ringtrain.collectives.execution.node_program import canonical_program
from ringtrain.collectives.execution.reduction import EmptyReduction, Reduction
from ringtrain.collectives.shared_memory import MAPPED, unavailable
from ringtrain.errors import ConfigError
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce, GradientReduction
from ringtrain.exchange.buckets.ownership import execution
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.memory.buckets import Bucket
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops


class ReproducibleAllReduce(GradientReduction):
    """Prepares sums of the gradients of shards in one order, whatever the number of ranks.

    ``shards``: this rank's, start:stop. ``nbytes``: once bound, its memory in addition to the buffer. Raises
    ConfigError for more ranks than shards.
    """

    exact = True

    def __init__(self, settings: ExchangeSettings):
        transport, count = settings.transport, settings.config.shards
        check_ranks(transport.size, count)
        self._settings, self._count, self._transport, self._ops = settings, count, transport, settings.ops
        self._plain = BucketedAllReduce(settings.with_options(algorithm=AUTO))
        self._schedule = canonical(transport.size, count)
        self.shards = shard_range(transport.rank, transport.size, count)
        self.header = f"reproducible over {count} shards"

    def bind(self, spans: Sequence[Span], buffer: Array) -> Reducer:
        transport, summing = self._transport, self._plain
        further = max(map(self._schedule.inputs_of, range(transport.size))) - 1
        self._inputs = [transport.allocate(buffer.size, buffer.dtype) for _ in range(further)]
        self._sums = ShardSums(self._ops, buffer, self.shards, self._count, self._inputs, transport.scratch)
        self.nbytes = self._sums.nbytes
        buckets = summing.buckets(spans, buffer.dtype)
        by_messages = self._why_messages([buffer, *self._inputs], range(len(buckets)))
        sums = [self._prepare(buffer, bucket, tag, not by_messages) for tag, bucket in enumerate(buckets)]
        how = "in memory that the ranks share"
        if by_messages:
            how = f"{NAME} over messages: {by_messages}"
        self.notes = [f"reproducible: gradients of {self._count} shards are added in one tree, {how}", *summing.notes]
        return summing.make_reducer(buckets, sums)

    def shard_grad_ready(self, span: Span) -> None:
        """Add the span's gradient of this rank's next shard, which lies in the buffer."""
        self._sums.add(span)

    def _why_messages(self, arrays: Sequence[Array], tags: Sequence[int]) -> str | None:
        """Return the reason against sums in shared memory; None without one. Collective."""
        transport = self._transport
        if self._settings.config.algorithm == NAME:
            return "--algorithm asks for it"
        if transport.size == 1 or transport.nodes > 1:
            return "there is one rank" if transport.size == 1 else f"there are {transport.nodes} nodes"
        return next(filter(None, [unavailable(transport, array, MAPPED, tags) for array in arrays]), None)

    def _prepare(self, buffer: Array, bucket: Bucket, tag: int, mapped: bool) -> Reduction:
        """Return the sum of a bucket, under the guard."""
        if bucket.stop == bucket.start:
            return EmptyReduction()
        parts = [array[bucket.start : bucket.stop] for array in (buffer, *self._inputs)]
        if mapped:
            return self._in_place(parts, tag, bucket.name)
        settings, ops, schedule = self._settings, self._plain.streams.exchange, self._schedule
        inputs = parts[1 : schedule.inputs_of(self._transport.rank)]
        return execution(settings, ops, schedule, parts[0], tag, "all-reduce", bucket.name, inputs=inputs)

    def _in_place(self, parts: Sequence[Array], tag: int, name: str) -> Reduction:
        transport, ops, guard = self._transport, self._plain.streams.exchange, self._settings.guard
        program, counter = canonical_program(transport.size, self._count), transport.signal_counter(tag)
        views = [transport.peer_views(part) or [] for part in parts]
        assert counter is not None  # bind() has found shared memory
        dtype = np.dtype(parts[0].dtype).name
        reduction = make_mapped(program, transport, views[0], counter, "sum", dtype, ops, inputs=views[1:])
        reduction.algorithm = NAME
        return reduction if guard is None else guard.watch(reduction, "sum", dtype, parts[0].size, content=name)

    def rehearse(self) -> None:
        """It adds and copies alone."""


def check_ranks(size: int, count: int) -> None:
    """Raises ConfigError for more ranks than shards."""
    if size > count:
        raise ConfigError(
            f"--reproducible cuts the batch into --shards {count}, and there are {size} ranks, each of which needs a "
            f"shard: start at most {count}, or give more --shards, which changes the result"
        )


class ShardSums:
    """Adds the gradients of this rank's shards, as it computes one after another: its part of the tree.

        shard       2      3          4       (2 to 4 of 8, rank 1 of 3)
        gradient    2      3          4
        slot 0      2      2 + 3      2 + 3

    Each gradient comes in the arena and overwrites the one before. So sums that wait for a later shard lie in slots, as
    a binary counter carries (:func:`ringtrain.collectives.algorithms.shards.folds`): as few as possible, made once.

    grads:       flat, over the arena: each shard's gradient, and the last partial sum
    rank_shards: this rank's shards start:stop, of ``shards``
    inputs:      arrays like ``grads`` that other ranks may read: slots 0, 1 and so on, for the other partial sums.
                 There may be more than this rank needs
    scratch:     scratch(count, dtype): further slots, of this rank alone
    """

    def __init__(
        self,
        ops: Ops,
        grads: Array,
        rank_shards: Node,
        shards: int,
        inputs: Sequence[Array],
        scratch: Callable[[int, np.dtype], Array],
    ):
        self._ops, self._grads = ops, grads
        self._folds, _ = folds(*rank_shards, shards)
        further = max(slots(*rank_shards, shards) - len(inputs), 0)
        self._slots = [*inputs, *(scratch(grads.size, grads.dtype) for _ in range(further))]
        self._done: dict[str, int] = {}  # shards that have come, by span
        self.nbytes = len(self._slots) * grads.size * grads.dtype.itemsize

    def add(self, span: Span) -> None:
        """Add the span's gradient of the next shard."""
        done = self._done.get(span.name, 0)
        self._done[span.name] = (done + 1) % len(self._folds)
        fold, grad = self._folds[done], self._grads[span.start : span.stop]
        for slot in fold.adds:
            partial = self._slots[slot][span.start : span.stop]
            self._ops.add(partial, grad, partial if slot == fold.keep else grad)
        if fold.keep is not None and fold.keep not in fold.adds:
            self._ops.copy(grad, self._slots[fold.keep][span.start : span.stop])
