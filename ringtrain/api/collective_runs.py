"""The collectives of host arrays, each of which blocks until it is done: streams, schedules, and the MPI's own.

Streams (:mod:`ringtrain.collectives.stream`) and the MPI's own work on the arrays themselves. A schedule runs in the
communicator's staging memory, piece by piece, as an all-reduce of a foreign array does; its preparation is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ringtrain.allreduce.catalogue import NATIVE_TYPES, check_native
from ringtrain.allreduce.dtypes import MEAN, TYPES, NumberType, reduction_of
from ringtrain.api.memory import STAGING_BYTES, Memory
from ringtrain.api.plan import AllReducePlan, PlanBuilder, PlanCache, PreparedReduction, make_allreduce_plan
from ringtrain.api.request import Agreement, carrier_of, started
from ringtrain.arrays import Array
from ringtrain.collectives import texts
from ringtrain.collectives.algorithms.canonical import NAME as CANONICAL
from ringtrain.collectives.algorithms.canonical import canonical
from ringtrain.collectives.algorithms.shards import Node, folds, shard_range
from ringtrain.collectives.catalogue import HALVES, make_broadcast, make_by_rank, make_schedule
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.mapped import make_mapped
from ringtrain.collectives.execution.node_program import canonical_program
from ringtrain.collectives.execution.reduction import HOST, NATIVE, Combine, Reduction
from ringtrain.collectives.execution.streamed import Streamed
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER, Schedule
from ringtrain.collectives.shared_memory import MAPPED, unavailable
from ringtrain.collectives.stream import STREAM, cannot_stream, make_streamed
from ringtrain.errors import UsageError, everywhere, nearest
from ringtrain.transport import native_call
from ringtrain.transport.base import Transport
from ringtrain.transport.buffers import MESSAGE_BYTES, message_bounds
from ringtrain.transport.native_call import NativeCall

AUTO = "auto"
AGREED = 1024  # calls that are remembered as the same on all ranks
BYTES = np.dtype(np.uint8)
_NOTHING = np.empty(0)
BARRIER, IN_PARTS = "barrier", "all_to_all in parts"
ADDED_BY = {"reduce_scatter": "sliced", "reduce": "tree"}  # schedules for types that an MPI does not add


@dataclass(frozen=True, slots=True)
class AgreedCall:
    """A call, as all ranks must make it: ``shape`` and ``dtype`` of the array that has them on all ranks."""

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    algorithm: str = NATIVE
    op: str = ""
    root: int | None = None

    @property
    def numbers(self) -> NumberType:
        return TYPES[self.dtype]

    @property
    def carrier(self) -> NumberType:
        return carrier_of(self.dtype, self.op)

    def __str__(self) -> str:
        op = f"the {self.op} of " if self.op else ""
        root = "" if self.root is None else f", root {self.root}"
        return f"{self.kind} of {op}{self.dtype} {list(self.shape)}{root} by {self.algorithm}"


def choose_algorithm(asked: str | None, kind: str, dtype: str, streams: bool) -> str:
    """Return the name of the algorithm that runs. Raises UsageError for an unknown name.

    streams: whether the ranks can stream it: that is faster than the MPI's own. Between nodes the MPI's own know the
             nodes, and schedules in halves do not; but an MPI does not add all types.
    """
    known = [AUTO, NATIVE, STREAM, *HALVES]
    if asked not in (None, *known):
        raise UsageError(f"unknown algorithm {asked!r}: {nearest(str(asked), known)}")
    if asked not in (None, AUTO):
        return str(asked)
    if streams:
        return STREAM
    return NATIVE if dtype in NATIVE_TYPES else ADDED_BY.get(kind, NATIVE)


class CollectiveRuns:
    """Runs collectives over one transport. All ranks make the same calls in the same order. ``forget()`` is called when
    a call is new again."""

    def __init__(
        self,
        transport: Transport,
        memory: Memory,
        builder: PlanBuilder,
        agreement: Agreement,
        forget: Callable[[], None],
    ):
        self._forget = forget
        self._transport, self._memory, self._builder, self._agreement = transport, memory, builder, agreement
        self._rank, self._size = transport.rank, transport.size
        self._plans: PlanCache[AgreedCall, AllReducePlan] = PlanCache(builder.release)
        self._agreed: dict[AgreedCall, str] = {}
        self._streams: dict[AgreedCall, Streamed] = {}

    def choose(self, asked: str | None, kind: str, dtype: str) -> str:
        """Return the algorithm of :func:`choose_algorithm` for these ranks. Raises UsageError."""
        why_not: str | None = "there is one rank"
        if self._size > 1:
            why_not = cannot_stream(self._transport, _NOTHING, dtype, kind.replace("_", "-"))
        name = choose_algorithm(asked, kind, dtype, why_not is None)
        if name == STREAM and why_not:
            raise everywhere(UsageError(texts.CANNOT_RUN.format(algorithm=name, why=why_not)))
        return name

    def clear(self) -> None:
        self._plans.clear()
        self._streams.clear()

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────
    def barrier(self) -> None:
        self._agreement.again(BARRIER)

    def broadcast(self, call: AgreedCall, array: np.ndarray) -> None:
        """Overwrite the array by the root's, on all ranks."""
        self._agree(call)
        flat = contiguous(array)
        if call.algorithm == NATIVE:
            self._native(call, NativeCall(native_call.BROADCAST, recv=flat, root=call.root or 0))
        elif call.algorithm == STREAM:
            self._stream(call, flat, flat)
        else:
            schedule, data = partial(make_broadcast, call.algorithm, self._size, call.root or 0), _bytes(flat)
            for start, stop, part in self._schedule_plan(call, flat.nbytes, 1, BYTES, schedule).segments:
                if self._rank == call.root:
                    part.span[...] = data[start:stop]
                self._run(call, part)
                if self._rank != call.root:
                    data[start:stop] = part.span
        if flat is not array and self._rank != call.root:
            np.copyto(array, flat.reshape(array.shape))

    def all_gather(self, call: AgreedCall, source: np.ndarray, target: np.ndarray) -> None:
        """Write every rank's ``source`` into a row of ``target``; both are contiguous."""
        self._agree(call)
        if call.algorithm == NATIVE:
            self._native(call, NativeCall(native_call.ALL_GATHER, source, target))
            return
        if call.algorithm == STREAM:
            self._stream(call, source, target)
            return
        schedule = partial(make_by_rank, call.algorithm, self._size, ALL_GATHER)
        plan = self._schedule_plan(call, source.nbytes, self._size, BYTES, schedule)
        data, every = _bytes(source), _bytes(target).reshape(self._size, -1)
        for start, stop, part in plan.segments:
            rows = part.span.reshape(self._size, -1)
            rows[self._rank] = data[start:stop]
            self._run(call, part)
            every[:, start:stop] = rows

    def reduce_scatter(self, call: AgreedCall, source: np.ndarray, target: np.ndarray) -> None:
        """Write the reduction of every rank's row for this rank into ``target``; both are contiguous."""
        self._agree(call)
        if call.algorithm == STREAM:
            self._stream_sum(call, source, target)
            return
        rows, result = self._addends(call, source.reshape(self._size, -1), target.reshape(-1), self._size)
        if call.algorithm == NATIVE:
            self._native_reduce_scatter(call, rows, result)
        else:
            schedule = partial(make_by_rank, call.algorithm, self._size, REDUCE_SCATTER)
            plan = self._schedule_plan(call, result.size, self._size, result.dtype, schedule)
            for start, stop, part in plan.segments:
                span = part.span.reshape(self._size, -1)
                span[...] = rows[:, start:stop]
                self._run(call, part)
                result[start:stop] = span[self._rank]
        self._finish(call, result, target.reshape(-1), self._size)

    def reduce(self, call: AgreedCall, source: np.ndarray, target: np.ndarray) -> None:
        """Write the reduction of every rank's ``source`` into the ``target`` of the root; both are contiguous."""
        self._agree(call)
        is_root = self._rank == call.root
        if call.algorithm == STREAM:
            self._stream_sum(call, source, target)
            return
        into = target.reshape(-1) if is_root else np.empty(source.size, source.dtype)
        (row,), result = self._addends(call, source.reshape(1, -1), into, self._size)
        if call.algorithm == NATIVE:
            op, storage = reduction_of(call.op), call.carrier.storage
            total = np.empty(result.shape, storage)
            self._native(call, NativeCall(native_call.REDUCE, np.asarray(row, storage), total, call.root or 0, op))
            if is_root:
                np.copyto(result, total)
        else:
            plan = self._schedule_plan(call, result.size, 1, result.dtype, partial(make_schedule, "tree", self._size))
            for start, stop, part in plan.segments:
                part.span[...] = row[start:stop]
                self._run(call, part)
                result[start:stop] = part.span
        if is_root:
            self._finish(call, result, into, self._size)

    def _addends(
        self, call: AgreedCall, rows: np.ndarray, target: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what is added, and where the sum comes: numbers of the carrier."""
        numbers = TYPES[call.dtype]
        if call.carrier is numbers:
            return rows, target
        return numbers.shares(rows, count), np.empty(target.shape, call.carrier.storage)

    def _finish(self, call: AgreedCall, result: np.ndarray, target: np.ndarray, count: int) -> None:
        """Write the reduction of ``count`` numbers each, in the place of :meth:`_addends`, into the target."""
        numbers = TYPES[call.dtype]
        if call.carrier is not numbers:
            target[...] = numbers.encode(result)
        elif call.op == MEAN:
            numbers.divide(target, count)

    def gather_or_scatter(self, call: AgreedCall, source: np.ndarray, target: np.ndarray) -> None:
        """Gather every rank's ``source`` into a row of the root's ``target``, or scatter the rows of its ``source``."""
        self._agree(call)
        if call.algorithm == STREAM:
            self._stream(call, source, target)
        else:
            self._native(call, NativeCall(call.kind, source, target, call.root or 0))

    def all_to_all(self, call: AgreedCall, source: np.ndarray, target: np.ndarray, counts: list[list[int]]) -> None:
        """Write the rows of all ranks for this one into ``target``, one after the other. ``counts``: bytes to each
        rank, and from each, which all ranks compare where parts differ."""
        self._agree(call)
        if call.algorithm == STREAM:
            self._stream(call, source, target)
            return
        if call.kind == IN_PARTS:
            self._compare(call, counts)
        sent, received = counts
        native = NativeCall(native_call.ALL_TO_ALL, source, target, send_counts=sent, recv_counts=received)
        self._native(call, native)

    def _compare(self, call: AgreedCall, counts: list[list[int]]) -> None:
        """Raise UsageError on all ranks if one rank wants more or fewer bytes than another one has for it."""
        every = np.empty((self._size, 2, self._size), np.int64)
        self._native(call, NativeCall(native_call.ALL_GATHER, np.array(counts), every))
        sent, wanted = every[:, 0], every[:, 1].T
        for source, target in np.argwhere(sent != wanted)[:1].tolist():
            names = self._transport.world_ranks
            raise everywhere(
                UsageError(
                    f"rank {names[source]} sends {sent[source, target]} bytes to rank {names[target]}, which wants "
                    f"{wanted[source, target]}: send_counts of the one must be recv_counts of the other"
                )
            )

    # ── pieces ────────────────────────────────────────────────────────────────────────────────────────────
    def _native_reduce_scatter(self, call: AgreedCall, rows: np.ndarray, target: np.ndarray) -> None:
        """Run the MPI's own on as many columns at once as its counts allow."""
        op, longest = reduction_of(call.op), max(MESSAGE_BYTES // (rows.itemsize * self._size), 1)
        storage = call.carrier.storage  # the MPI knows no other order of bytes
        for start, stop in message_bounds(target.size, longest):
            part = np.ascontiguousarray(rows[:, start:stop], storage)
            into = target[start:stop] if target.dtype == storage else np.empty(stop - start, storage)
            self._native(call, NativeCall(native_call.REDUCE_SCATTER, part, into, op=op))
            np.copyto(target[start:stop], into)

    def _schedule_plan(
        self, call: AgreedCall, count: int, rows: int, storage: np.dtype, schedule: Callable[[], Schedule]
    ) -> AllReducePlan:
        def make(span: np.ndarray, tag: int) -> Reduction:
            combine = call.carrier.combine(call.op) if call.op else _no_addition
            return Execution(schedule(), self._transport, span, combine, tag, segment_for(self._transport))

        return self._plan(call, count, rows, storage, make)

    def _plan(
        self, call: AgreedCall, count: int, rows: int, storage: np.dtype, make: Callable[[np.ndarray, int], Reduction]
    ) -> AllReducePlan:
        """Return the plan of ``count`` elements of each of ``rows`` rows; ``make(span, tag)`` prepares a piece."""

        def part(length: int) -> PreparedReduction:
            span = self._memory.staging(rows * length, storage)
            return self._builder.hold(span, partial(make, span))

        longest = max(STAGING_BYTES // (rows * storage.itemsize), 1)
        return self._plans.get(call, lambda: make_allreduce_plan(part, count, longest))

    def _run(self, call: AgreedCall, part: PreparedReduction) -> None:
        self._agreement.wait(call, partial(started, part.reduction))

    # ── shards ────────────────────────────────────────────────────────────────────────────────────────────
    def reduce_shards(self, call: AgreedCall, rows: np.ndarray, target: np.ndarray) -> None:
        """Write the reduction of all ranks' rows into ``target``, in the order of the canonical tree
        (:mod:`ringtrain.collectives.algorithms.shards`). Both are contiguous; a row of ``rows`` is a shard."""
        self._agree(call)
        shards, carrier, combine = self._size * len(rows), call.carrier, call.carrier.combine(call.op)
        rows, flat = self._addends(call, rows.reshape(len(rows), -1), target.reshape(-1), shards)
        arrays = max(map(canonical(self._size, shards).inputs_of, range(self._size)))

        def make(span: np.ndarray, tag: int) -> Reduction:
            inputs, op = span.reshape(arrays, -1), reduction_of(call.op)
            return _canonical_reduction(self._transport, shards, inputs, op, carrier.name, combine, tag)

        for start, stop, part in self._plan(call, flat.size, arrays, carrier.storage, make).segments:
            inputs = list(part.span.reshape(-1, stop - start))
            _add_shards(rows[:, start:stop], shard_range(self._rank, self._size, shards), shards, inputs, combine)
            self._run(call, part)
            flat[start:stop] = inputs[0]
        self._finish(call, flat, target.reshape(-1), shards)

    # ── streams ───────────────────────────────────────────────────────────────────────────────────────────
    def _stream_sum(self, call: AgreedCall, source: np.ndarray, target: np.ndarray) -> None:
        storage = call.numbers.storage
        into = target if target.dtype == storage and target.flags.aligned else np.empty(target.shape, storage)
        self._stream(call, np.require(source, storage, ("C", "ALIGNED")), into)
        if into is not target:
            np.copyto(target, into)

    def _stream(self, call: AgreedCall, source: np.ndarray, target: np.ndarray) -> None:
        """Run a collective, in which the ranks' calls are compared."""
        streamed = self._streams.get(call)
        if streamed is None:
            if len(self._streams) >= AGREED:
                del self._streams[next(iter(self._streams))]
            streamed = self._streams[call] = self._make_stream(call, source, target)
        streamed.bind(source, target)
        self._agreement.run(call, streamed)
        streamed.release()

    def _make_stream(self, call: AgreedCall, source: np.ndarray, target: np.ndarray) -> Streamed:
        """Return a collective of elements that are added, or of bytes: those of a row where there are rows."""
        collective, whole = call.kind.replace("_", "-"), target if call.kind == native_call.SCATTER else source
        count = whole.size if call.op else whole.nbytes
        count //= self._size if collective in (native_call.REDUCE_SCATTER, native_call.ALL_TO_ALL) else 1
        numbers = call.op or "sum", call.dtype, count, call.numbers.itemsize if call.op else 1
        root = call.root or 0
        return make_streamed(self._transport, *numbers, call=str(call), collective=collective, root=root)

    def can_repeat(self, call: AgreedCall) -> bool:
        """Whether the call needs no check when the same arrays come again: the guard numbers all calls."""
        return call.algorithm == STREAM and not self._agreement.is_guarded

    def bound(
        self, call: AgreedCall, source: np.ndarray, target: np.ndarray, arrays: Callable[[], object]
    ) -> Reduction:
        """Return a streamed call of these arrays, to be run again and again while they are there. arrays() → both"""
        streamed = self._make_stream(call, source, target)
        streamed.bind(source, target, arrays)
        return streamed

    # ── one operation ─────────────────────────────────────────────────────────────────────────────────────
    def _native(self, call: AgreedCall, native: NativeCall) -> None:
        self._agreement.wait(call, lambda: self._transport.native_start(native))

    def _agree(self, call: AgreedCall) -> None:
        """Check that all ranks make a call that is new, or that the MPI runs: ranks of a schedule that make other known
        calls wait for one another's messages in vain. Collective."""
        words = self._agreed.get(call)
        if words is not None:
            if call.algorithm == NATIVE:
                self._agreement.again(words)
            return
        words = str(call)
        self._agreement.on(words)
        if call.op and call.algorithm == NATIVE and call.carrier.name not in NATIVE_TYPES:
            check_native(self._transport, call.carrier, reduction_of(call.op))
        if len(self._agreed) >= AGREED:
            del self._agreed[next(iter(self._agreed))]
            self._forget()
        self._agreed[call] = words


def _no_addition(a: Array, b: Array, y: Array) -> None:
    raise AssertionError("a schedule that moves elements adds none")


def contiguous(array: np.ndarray) -> np.ndarray:
    """Return the array itself, or a copy of it without gaps."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(BYTES)


# ── shards ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _add_shards(rows: np.ndarray, node: Node, shards: int, inputs: Sequence[np.ndarray], combine: Combine) -> None:
    """Add the rows, the shards of a node of the tree, as far as the tree allows it. The partial sums end in ``inputs``:
    the last in the first array, the others in those behind it."""
    last, slots = inputs[0], list(inputs[1:])
    for row, fold in zip(rows, folds(*node, shards)[0], strict=True):
        np.copyto(last, row)
        for slot in fold.adds:
            combine(slots[slot], last, slots[slot] if slot == fold.keep else last)
        if fold.keep is not None and fold.keep not in fold.adds:
            if fold.keep == len(slots):
                slots.append(np.empty_like(last))  # a sum that the other ranks never see
            np.copyto(slots[fold.keep], last)


def _canonical_reduction(
    transport: Transport, shards: int, inputs: np.ndarray, op: str, dtype: str, combine: Combine, tag: int
) -> Reduction:
    """Return the all-reduce of the partial sums in the rows of ``inputs``: in memory that the node shares, if there is
    only one and it does, else over messages. The bits are the same. Collective."""
    first, size = inputs[0], transport.size
    counter = transport.signal_counter(tag)
    if size > 1 and unavailable(transport, first, MAPPED, [tag]) is None and counter is not None:
        views = [transport.peer_views(array) or [] for array in inputs]
        program = canonical_program(size, shards)
        reduction = make_mapped(program, transport, views[0], counter, op, dtype, HOST, views[1:])
        reduction.algorithm = CANONICAL
        return reduction
    schedule = canonical(size, shards)
    further = list(inputs[1 : schedule.inputs_of(transport.rank)])
    return Execution(schedule, transport, first, combine, tag, segment_for(transport), inputs=further)
