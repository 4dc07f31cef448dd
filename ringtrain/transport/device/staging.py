"""Pieces of device memory on their way through page-locked host memory.

A send is copied down, then sent; a receive lands, then is copied up. Long spans are cut, so that one piece is copied
while another travels:

    device ──copy──► berth ──message──► berth ──copy──► device
           piece 2           piece 1            piece 0

Messages of one peer and tag match first in, first out. So whatever goes there, host memory too, stands in one queue, a
*channel*, and is handed to the inner transport in the order in which it was started, however early a later copy ends.

A *berth* is host memory with a message prepared on it. A channel has a few of each length, for all that pass through
it: their memory stays in the processor's cache, and there is little of it to lock. Copies go on two streams, one down
and one up, since devices have an engine for each; no stream of the caller waits for them or is waited for.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from ringtrain.transport.base import Handle
from ringtrain.transport.buffers import cut
from ringtrain.transport.device.pinned import Pinned

# A copy of 1 MiB takes 20 to 50 µs at the 20 to 50 GB/s of PCIe, several times what issuing it and its message takes
# here: smaller pieces would wait for this interpreter, larger ones let the network wait longer for the first.
PIECE_BYTES = 1 << 20
BERTHS = 4  # of a length: one is copied to, one copied from, and two travel, so that the network always has the next


class HostBuffer:
    """Host memory, and the message prepared on it."""

    __slots__ = ("busy", "memory", "message")

    def __init__(self, memory: np.ndarray, message: Handle):
        self.memory, self.message, self.busy = memory, message, False


class CopyEngine:
    """One device's copies, and all channels: whoever waits for one of them moves all of them on, since the peer may
    wait for another. ``runtime`` is the device's (:mod:`ringtrain.ops.cuda.runtime`)."""

    def __init__(self, runtime, piece_bytes: int = PIECE_BYTES):
        self.runtime, self.piece_bytes = runtime, piece_bytes
        self.pinned = Pinned(runtime.pinned)
        self.down, self.up = runtime.stream(), runtime.stream()
        self._channels: dict[tuple, Channel] = {}
        self._active: dict[Channel, None] = {}
        self._lock = threading.Lock()

    def channel(self, sending: bool, peer: int, tag: int, prepare: Callable) -> "Channel":
        """``prepare(moves, tag)`` is the inner transport's way to prepare messages in that direction."""
        key = (sending, peer, tag)
        if key not in self._channels:
            self._channels[key] = Channel(self, sending, peer, tag, prepare)
        return self._channels[key]

    def start(self, pieces: list["StagedMessage"]) -> None:
        with self._lock:
            for piece in pieces:
                piece.channel.add(piece)
                self._active[piece.channel] = None
            for channel in dict.fromkeys(piece.channel for piece in pieces):
                channel.progress()

    def progress(self) -> None:
        """Unless another thread is at it."""
        if self._active and self._lock.acquire(blocking=False):
            try:
                for channel in tuple(self._active):
                    channel.progress()
                    if channel.idle:
                        del self._active[channel]
            finally:
                self._lock.release()

    def settle(self) -> None:
        """Hand over what is being copied down, so that it travels while this process is inside of the MPI."""
        with self._lock:
            for channel in self._active:
                channel.settle()

    def copy_down(self, array, memory: np.ndarray):
        """Begin; the event of its end."""
        self.runtime.download(array, memory, self.down)
        return self.down.record()

    def copy_up(self, memory: np.ndarray, array):
        self.runtime.upload(memory, array, self.up)
        return self.up.record()


class Channel:
    """All that goes to one peer by one tag, or comes from there, in its order."""

    def __init__(self, engine: CopyEngine, sending: bool, peer: int, tag: int, prepare: Callable):
        self.engine, self.sending, self.peer, self.tag, self._prepare = engine, sending, peer, tag, prepare
        self._berths: dict[int, list[HostBuffer]] = {}
        self._waiting: deque[StagedMessage] = deque()  # not yet with the inner transport
        self._posted: list[StagedMessage] = []

    def pieces(self, span) -> "list[StagedMessage]":
        """The messages of a span."""
        if isinstance(span, np.ndarray):
            return [StagedMessage(self, None, self._prepare([(self.peer, span)], self.tag))]
        data = self.engine.runtime.view(span, np.uint8)
        bounds = list(cut(data.size, self.engine.piece_bytes))
        self._provide(b - a for a, b in bounds)
        return [StagedMessage(self, data[a:b]) for a, b in bounds]

    def _provide(self, sizes: Iterator[int]) -> None:
        """Berths for one more piece of each of these lengths."""
        for nbytes in sizes:
            berths = self._berths.setdefault(nbytes, [])
            if len(berths) < BERTHS:
                memory = self.engine.pinned.take(nbytes)
                berths.append(HostBuffer(memory, self._prepare([(self.peer, memory)], self.tag)))

    def berth(self, nbytes: int) -> HostBuffer | None:
        """A free one."""
        return next((berth for berth in self._berths[nbytes] if not berth.busy), None)

    def add(self, piece: "StagedMessage") -> None:
        piece.rewind()
        self._waiting.append(piece)

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._posted)

    def progress(self) -> None:
        for piece in self._waiting:
            if not piece.begin():
                break  # no berth is free: none behind it is posted before it anyway
        while self._waiting and self._waiting[0].ready():
            piece = self._waiting.popleft()
            piece.message.start()
            self._posted.append(piece)
        if self._posted:
            self._posted = [piece for piece in self._posted if not piece.finish()]

    def settle(self) -> None:
        self.progress()
        while self._waiting and self._waiting[0].copied is not None:
            self._waiting[0].copied.wait()
            self.progress()


class StagedMessage:
    """One message of a channel: of device memory by a berth, or of host memory as it is, by a message of its own."""

    __slots__ = ("_berth", "array", "channel", "copied", "done", "message")

    def __init__(self, channel: Channel, array, message: Handle | None = None):
        self.channel, self.array, self.message = channel, array, message
        self._berth = self.copied = None
        self.done = True

    def rewind(self) -> None:
        self._berth = self.copied = None
        self.done = False

    def begin(self) -> bool:
        """Take a berth, and copy down what is to be sent; whether that was to be had, now or before."""
        if self.array is None or self._berth is not None:
            return True
        berth = self.channel.berth(self.array.size)
        if berth is None:
            return False
        berth.busy, self._berth, self.message = True, berth, berth.message
        if self.channel.sending:
            self.copied = self.channel.engine.copy_down(self.array, berth.memory)
        return True

    def ready(self) -> bool:
        """Whether its message may start."""
        if self.array is None:
            return True
        return self._berth is not None and (self.copied is None or self.copied.done())

    def finish(self) -> bool:
        """Whether it is done: its message, and the copy up of what has come."""
        if self._awaits_message() and not self.message.test():
            return False
        if self.array is not None and not self.channel.sending:
            self.copied = self.copied or self.channel.engine.copy_up(self._berth.memory, self.array)
            if not self.copied.done():
                return False
        if self._berth is not None:
            self._berth.busy = False
        self.done = True
        return True

    def _awaits_message(self) -> bool:
        return self.channel.sending or self.copied is None
