"""A transport whose collectives are under a guard. Training uses it for all but the all-reduce of gradients."""

from functools import lru_cache
from typing import Any

from ringtrain.arrays import Array
from ringtrain.collectives.execution.reduction import NATIVE
from ringtrain.monitor.guard import Guard
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import ForwardingTransport, Handle, Transport
from ringtrain.transport.native_call import NativeCall


class GuardedTransport(ForwardingTransport):
    """A transport under a guard. Memory is allocated without the guard: this happens before the first collective."""

    def __init__(self, inner: Transport, guard: Guard):
        super().__init__(inner)
        self._guard = guard

    def native_allreduce(self, span: Array, op: str = "sum") -> None:
        self._guard.run(_all_reduce(span.size, span.dtype, op), lambda: self._inner.native_allreduce(span, op))

    def native_allreduce_start(self, span: Array) -> Handle:
        text = _all_reduce(span.size, span.dtype, "sum")
        return self._guard.started(text, lambda: self._inner.native_allreduce_start(span))

    def native_start(self, call: NativeCall) -> Handle:
        text = f"{call.kind} by the MPI, root {call.root}"
        return self._guard.started(text, lambda: self._inner.native_start(call))

    def broadcast(self, span: Array, root: int = 0) -> None:
        self._guard.run(_broadcast(span.size * span.dtype.itemsize, root), lambda: self._inner.broadcast(span, root))

    def gather_json(self, value: Any) -> list:
        return self._guard.run("gather of values", lambda: self._inner.gather_json(value))

    def barrier(self) -> None:
        self._guard.run("barrier", self._inner.barrier)

    def node_barrier(self) -> None:
        self._guard.run("barrier of a node", self._inner.node_barrier)


# A text is formatted at its first call alone: a call of the MPI takes a few microseconds, and so does a text.
@lru_cache
def _all_reduce(count: int, dtype, op: str) -> str:
    return f"all-reduce of {count:,} {dtype} by {NATIVE} ({op})"


@lru_cache
def _broadcast(nbytes: int, root: int) -> str:
    return f"broadcast of {nbytes:,} bytes from rank {root}"


def guarded(transport: Transport, activity: Activity) -> Transport:
    """The transport under a guard of its own, if there are other ranks; ``activity`` is this rank's. Collective."""
    transport.activity = activity
    if transport.size == 1:
        return transport
    with activity.during("finding the other ranks", limited=True):
        guard = Guard(transport, activity.deadline_s)
    return GuardedTransport(transport, guard)


def guard_of(transport: Transport) -> Guard | None:
    """The guard of the transport; None without one."""
    return transport._guard if isinstance(transport, GuardedTransport) else None


def bare(transport: Transport) -> Transport:
    """The transport without its guard, for callers that have a guard of their own or measure time."""
    return transport._inner if isinstance(transport, GuardedTransport) else transport
