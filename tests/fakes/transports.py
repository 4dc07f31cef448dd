"""Transports that wrap another one: to see what is moved, to be slow in ways that no network is on demand,
and to move the memory of a device that is not there."""

import math
import random

import numpy as np

from ringtrain.transport.base import ForwardingHandle, ForwardingTransport, Handle, Transport
from tests.fakes.host_memory import DeviceRefusal, arrays_of

# What operations call arrays that they only read: parameters in passes, and terms of sums.
READ = {"w_DK", "w_RSCK", "b_K", "gamma_C", "beta_C", "gamma", "beta", "a", "b", "sources"}


class Late(ForwardingHandle):
    """Says "not yet" a few times before it asks: every interleaving may happen, and messages seem to end in
    any order."""

    def __init__(self, inner: Handle, rng: random.Random, most: int):
        super().__init__(inner)
        self._rng, self._most, self._more = rng, most, 0

    def start(self) -> None:
        super().start()
        self._more = self._rng.randrange(self._most + 1)

    def test(self) -> bool:
        if self._more:
            self._more -= 1
            return False
        return super().test()

    def wait(self, deadline_s: float) -> None:
        self._more = 0
        super().wait(deadline_s)


class Noted(ForwardingHandle):
    """Writes down each start."""

    def __init__(self, inner: Handle, log: list, entry: tuple):
        super().__init__(inner)
        self._log, self._entry = log, entry

    def start(self) -> None:
        self._log.append(self._entry)
        super().start()


class Wrapping:
    """What executions and exchanges use of a transport, with each handle wrapped by ``wrap``."""

    def __init__(self, inner, wrap):
        self._inner, self._wrap = inner, wrap
        self.rank, self.size, self.nodes, self.world_ranks = inner.rank, inner.size, inner.nodes, inner.world_ranks
        self.allocate, self.scratch, self.patience = inner.allocate, inner.scratch, inner.patience
        self.gather_json = inner.gather_json
        self.native_allreduce_start = inner.native_allreduce_start

    def sends(self, moves, tag):
        return self._wrap(self._inner.sends(moves, tag), "send", moves, tag)

    def recvs(self, moves, tag):
        return self._wrap(self._inner.recvs(moves, tag), "recv", moves, tag)


def delaying(inner, seed: int, most: int = 5) -> Wrapping:
    rng = random.Random(seed * 1000 + inner.rank)
    return Wrapping(inner, lambda handle, *_: Late(handle, rng, most))


def recording(inner) -> tuple[Wrapping, list]:
    """The transport, and its log of starts: (verb, peer, elements, tag)."""
    log: list = []

    def wrap(handle, verb, moves, tag):
        ((peer, span),) = moves
        return Noted(handle, log, (verb, peer, span.size, tag))

    return Wrapping(inner, wrap), log


class Apart(ForwardingHandle):
    """Messages arrive in memory of their own, and reach their spans when they are asked for and ``is_open()``."""

    def __init__(self, inner: Handle, private: list, spans: list, is_open):
        super().__init__(inner)
        self._private, self._spans, self._is_open = private, spans, is_open

    def test(self) -> bool:
        if not self._is_open() or not self._inner.test():
            return False
        for private, span in zip(self._private, self._spans, strict=True):
            span[...] = private
        return True

    def wait(self, deadline_s: float) -> None:
        self._inner.wait(deadline_s)
        self.test()


class Shut(Wrapping):
    """A transport on which nothing arrives under tags from ``first`` on, or up to ``last``, before it is ``opened``."""

    def __init__(self, inner, first: int, last: float = math.inf):
        super().__init__(inner, lambda handle, *_: handle)
        self._first, self._last, self.opened = first, last, False

    def recvs(self, moves, tag):
        private = [np.empty_like(span) for _, span in moves]
        into = [(peer, array) for (peer, _), array in zip(moves, private, strict=True)]
        spans = [span for _, span in moves]
        return Apart(
            self._inner.recvs(into, tag), private, spans, lambda: self.opened or not self._first <= tag <= self._last
        )


def settled(array, is_read=False):
    """The memory of a device array; a host array is its own. Refuses where an operation on that memory is still
    queued, on whatever stream: a transport reads and writes at once, and would come before it. What it only reads may
    be read by operations, too."""
    if isinstance(array, np.ndarray):
        return array
    for work in array._device.waiting():
        if any(
            np.may_share_memory(memory, array._memory)
            for memory in arrays_of(work.operands, but=READ if is_read else ())
        ):
            raise DeviceRefusal(f"memory was handed to a transport while {work.name} on it is queued")
    return array._memory


def _memory(array):
    """Of a device array; a host array is its own."""
    return array if isinstance(array, np.ndarray) else array._memory


class DeviceHandle(ForwardingHandle):
    """Looks at the queues whenever it starts; until a message has arrived no operation on its memory may be issued."""

    def __init__(self, inner: Handle, runtime, arrays: list, arrives: bool):
        super().__init__(inner)
        self._runtime, self._arrays, self._arrives = runtime, arrays, arrives
        self._coming: list = []

    def start(self) -> None:
        memory = [settled(array, not self._arrives) for array in self._arrays]
        self._inner.start()
        self._coming = memory if self._arrives else []
        self._runtime.arriving.extend(self._coming)

    def test(self) -> bool:
        if not self._inner.test():
            return False
        self._end()
        return True

    def wait(self, deadline_s: float) -> None:
        self._inner.wait(deadline_s)
        self._end()

    def _end(self) -> None:
        coming, self._coming = self._coming, []
        for memory in coming:
            index = next(i for i, other in enumerate(self._runtime.arriving) if other is memory)
            del self._runtime.arriving[index]


class DeviceTransport(ForwardingTransport):
    """Moves arrays of the fake device of ``ops`` over another transport, as an MPI that takes their addresses does.
    ``mapped``: whether a device reads and writes the memory of the others of its node."""

    def __init__(self, inner: Transport, ops, mapped: bool = False):
        super().__init__(inner)
        self._ops, self._runtime, self._mapped = ops, ops.runtime, mapped

    def group(self, ranks, tag=0):
        inner = self._inner.group(ranks, tag)
        return inner and DeviceTransport(inner, self._ops, self._mapped)

    def allocate(self, count, dtype):
        return self._runtime.adopt(self._inner.allocate(count, dtype))

    def scratch(self, count, dtype):
        return self._runtime.adopt(self._inner.scratch(count, dtype))

    def sends(self, moves, tag):
        return self._wrap(self._inner.sends, moves, tag, False)

    def recvs(self, moves, tag):
        return self._wrap(self._inner.recvs, moves, tag, True)

    def _wrap(self, prepare, moves, tag, arrives):
        inner = prepare([(peer, _memory(span)) for peer, span in moves], tag)
        return DeviceHandle(inner, self._runtime, [span for _, span in moves], arrives)

    def native_allreduce(self, span, op="sum"):
        self._inner.native_allreduce(settled(span), op)

    def native_allreduce_start(self, span):
        return self._inner.native_allreduce_start(settled(span))

    def broadcast(self, span, root=0):
        self._inner.broadcast(settled(span), root)

    def peer_views(self, span):
        if not self._mapped or isinstance(span, np.ndarray):
            return None
        views = self._inner.peer_views(span._memory)
        return views and [self._runtime.adopt(memory) for memory in views]

    def describe(self):
        return f"fake device over {self._inner.describe()}"
