"""A transport whose collectives are under a guard. Training uses it for all but the all-reduce of gradients."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from ringtrain.collectives.execution.reduction import NATIVE
from ringtrain.monitor import texts as texts
from ringtrain.monitor.guard import Guard
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.counters import Counters
from ringtrain.transport.rows import Rows
from ringtrain.transport.shared_arena import SignalCounter


class GuardedTransport(Transport):
    """A transport under a guard. Memory is allocated without the guard: this happens before the first collective."""

    def __init__(self, inner: Transport, guard: Guard):
        self._inner, self._guard = inner, guard
        self.rank, self.size, self.node, self.nodes = inner.rank, inner.size, inner.node, inner.nodes
        self.local_rank, self.local_size = inner.local_rank, inner.local_size
        self.neighbours, self.patience, self.links = inner.neighbours, inner.patience, inner.links
        self.why_not_shared, self.before_closing = inner.why_not_shared, inner.before_closing
        self.before_leaving, self.why_not_fault_tolerant, self.activity = (
            inner.before_leaving,
            inner.why_not_fault_tolerant,
            inner.activity,
        )

    @property
    def inner(self) -> Transport:
        """The transport without the guard."""
        return self._inner

    # ── watched ───────────────────────────────────────────────────────────────────────────────────────────
    def native_allreduce(self, span, op: str = "sum", source=None) -> None:
        self._run(_all_reduce(span.size, span.dtype, op), lambda: self._inner.native_allreduce(span, op, source))

    def native_allreduce_start(self, span) -> Handle:
        call = self._guard.call(_all_reduce(span.size, span.dtype, "sum"))
        return self._guard.started(call, lambda: self._inner.native_allreduce_start(span))

    def broadcast(self, span, root: int = 0) -> None:
        self._run(_broadcast(span.size * span.dtype.itemsize, root), lambda: self._inner.broadcast(span, root))

    def gather_json(self, value) -> list:
        return self._run(texts.GATHER, lambda: self._inner.gather_json(value))

    def barrier(self) -> None:
        self._run(texts.BARRIER, self._inner.barrier)

    def node_barrier(self) -> None:
        self._run(texts.NODE_BARRIER, self._inner.node_barrier)

    def _run(self, text: str, action: Callable):
        return self._guard.run(self._guard.call(text), action)

    # ── unwatched ─────────────────────────────────────────────────────────────────────────────────────────
    def allocate(self, count: int, dtype):
        return self._inner.allocate(count, dtype)

    def scratch(self, count: int, dtype):
        return self._inner.scratch(count, dtype)

    def sends(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._inner.sends(moves, tag)

    def recvs(self, moves: Sequence[tuple[int, object]], tag: int) -> Handle:
        return self._inner.recvs(moves, tag)

    def node_window(self, nbytes: int):
        return self._inner.node_window(nbytes)

    def peer_views(self, span) -> list | None:
        return self._inner.peer_views(span)

    def signal_counter(self, tag: int) -> SignalCounter | None:
        return self._inner.signal_counter(tag)

    def board(self, nbytes: int) -> Rows:
        return self._inner.board(nbytes)

    def counters(self, count: int) -> Counters:
        return self._inner.counters(count)

    def abort(self, code: int) -> None:
        self._inner.abort(code)

    def close(self) -> None:
        self._inner.close()

    def describe(self) -> str:
        return self._inner.describe()


# A text is formatted at its first call alone: a call of the MPI takes a few microseconds, and so does a text.
@lru_cache
def _all_reduce(count: int, dtype, op: str) -> str:
    return texts.WATCHED(kind=texts.ALL_REDUCE, count=count, dtype=dtype, algorithm=NATIVE, op=op)


@lru_cache
def _broadcast(nbytes: int, root: int) -> str:
    return texts.BROADCAST(nbytes=nbytes, root=root)


def watched(transport: Transport, activity: Activity) -> Transport:
    """The transport under a guard of its own, if there are other ranks; ``activity`` is this rank's. Collective."""
    transport.activity = activity
    if transport.size == 1:
        return transport
    with activity.during(texts.FINDING, limited=True):
        guard = Guard(transport, activity.deadline_s)
    return GuardedTransport(transport, guard)


def bare(transport: Transport) -> Transport:
    """The transport without its guard, for callers that have a guard of their own or measure time."""
    return transport.inner if isinstance(transport, GuardedTransport) else transport
