"""A transport that counts, for strategies of plug-ins, which send by its messages."""

import time

from ringtrain.transport.base import ForwardingHandle, ForwardingTransport, Handle, Moves, Transport
from ringtrain.transport.buffers import as_bytes


class CountedTransport(ForwardingTransport):
    """Forwards to another transport, and counts. It is one of the ``messages`` of
    :class:`~ringtrain.exchange.buckets.reducer.Reducers`.

    bytes_sent: of all started messages; not those of the MPI's own collectives, which it does not tell
    exposed_s:  seconds of the waits for messages, and of the MPI's own all-reduce
    """

    def __init__(self, inner: Transport):
        super().__init__(inner)
        self.bytes_sent, self.exposed_s = 0, 0.0

    def sends(self, moves: Moves, tag: int) -> Handle:
        nbytes = sum(as_bytes(span).size for _, span in moves)
        return _CountedHandle(self, self._inner.sends(moves, tag), nbytes)

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return _CountedHandle(self, self._inner.recvs(moves, tag), 0)

    def native_allreduce(self, *arguments, **named) -> None:
        began = time.perf_counter()
        self._inner.native_allreduce(*arguments, **named)
        self.exposed_s += time.perf_counter() - began


class _CountedHandle(ForwardingHandle):
    def __init__(self, counter: CountedTransport, inner: Handle, nbytes: int):
        super().__init__(inner)
        self._counter, self._nbytes = counter, nbytes

    def start(self) -> None:
        self._counter.bytes_sent += self._nbytes
        super().start()

    def wait(self, deadline_s: float) -> None:
        began = time.perf_counter()
        super().wait(deadline_s)
        self._counter.exposed_s += time.perf_counter() - began
