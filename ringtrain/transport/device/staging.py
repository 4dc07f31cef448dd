"""Staging of device memory through page-locked host memory, segment by segment.

A send is copied to the host, then sent; a receive arrives, then is copied to the device. Long spans are cut into
segments, so that one segment is copied while another travels:

    device ──copy──► host buffer ──message──► host buffer ──copy──► device
          segment 2                segment 1               segment 0

Messages of one peer and tag match first in, first out. So all of them, also messages of host memory, share one queue, a
*channel*, which hands them to the inner transport in the order of their starts, in any order of the copies' ends.

A *host buffer* is host memory with a message prepared on it. A channel has a few of each length, for all of its
messages: their memory stays in the processor's cache, and there is little of it to lock. Copies use two streams, one
down and one up, since devices have an engine for each; no stream of the caller waits for them or is waited for.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from ringtrain.arrays import Array
from ringtrain.transport.base import Handle, Moves
from ringtrain.transport.buffers import Raw, message_bounds
from ringtrain.transport.device.pinned import Pinned

# A copy of 1 MiB takes 20 to 50 µs at the 20 to 50 GB/s of PCIe, several times as long as issuing it and its message:
# smaller segments would wait for the interpreter, and with larger ones the network would wait longer for the first.
SEGMENT_BYTES = 1 << 20
Prepare = Callable[[Moves, int], Handle]
BUFFERS = 4  # of a length: one is copied to, one copied from, and two travel, so that the network always has the next


class CopyEvent(Protocol):
    """The end of a copy."""

    def done(self) -> bool: ...

    def wait(self) -> None: ...


class HostBuffer:
    """Host memory, and the message prepared on it."""

    __slots__ = ("busy", "memory", "message")

    def __init__(self, memory: np.ndarray, message: Handle):
        self.memory, self.message, self.busy = memory, message, False


class CopyEngine:
    """The copies of one device, and all channels: a wait for one channel progresses all of them, since the peer may
    wait for another. ``runtime`` is the device's (:mod:`ringtrain.ops.cuda.runtime`).
    """

    def __init__(self, runtime, segment_bytes: int = SEGMENT_BYTES):
        self.runtime, self.segment_bytes = runtime, segment_bytes
        self.pinned = Pinned(runtime.pinned)
        self.down, self.up = runtime.stream(), runtime.stream()
        self._channels: dict[tuple, Channel] = {}
        self._active: dict[Channel, None] = {}
        self._lock = threading.Lock()

    def channel(self, sending: bool, peer: int, tag: int, prepare: Prepare) -> "Channel":
        """Return the channel. ``prepare(moves, tag)`` prepares messages of the inner transport in that direction."""
        key = (prepare, peer, tag)
        if key not in self._channels:
            self._channels[key] = Channel(self, sending, peer, tag, prepare)
        return self._channels[key]

    def start(self, messages: list["StagedMessage"]) -> None:
        with self._lock:
            for message in messages:
                message.channel.add(message)
                self._active[message.channel] = None
            for channel in dict.fromkeys(message.channel for message in messages):
                channel.progress()

    def progress(self) -> None:
        """Progress all channels, unless another thread does."""
        if self._active and self._lock.acquire(blocking=False):
            try:
                for channel in tuple(self._active):
                    channel.progress()
                    if channel.idle:
                        del self._active[channel]
            finally:
                self._lock.release()

    def settle(self) -> None:
        """Hand over the copies to the host that are under way, so that they travel while this process is inside the
        MPI.
        """
        with self._lock:
            for channel in self._active:
                channel.settle()

    def copy_down(self, array: Array, memory: np.ndarray) -> CopyEvent:
        """Start a copy to the host and return the event of its end."""
        self.runtime.download(array, memory, self.down)
        return self.down.record()

    def copy_up(self, memory: np.ndarray, array: Array) -> CopyEvent:
        """Start a copy to the device and return the event of its end."""
        self.runtime.upload(memory, array, self.up)
        return self.up.record()


class Channel:
    """The queue of all messages to one peer by one tag, or from it."""

    def __init__(self, engine: CopyEngine, sending: bool, peer: int, tag: int, prepare: Prepare):
        self.engine, self.sending, self.peer, self.tag, self._prepare = engine, sending, peer, tag, prepare
        self._buffers: dict[int, list[HostBuffer]] = {}
        self._waiting: deque[StagedMessage] = deque()  # not yet with the inner transport
        self._posted: list[StagedMessage] = []

    def messages(self, span: Array | Raw) -> "list[StagedMessage]":
        if isinstance(span, np.ndarray):
            return [StagedMessage(self, None, self._prepare([(self.peer, span)], self.tag))]
        data = self.engine.runtime.view(span, np.uint8)
        bounds = list(message_bounds(data.size, self.engine.segment_bytes))
        self._provide(b - a for a, b in bounds)
        return [StagedMessage(self, data[a:b]) for a, b in bounds]

    def _provide(self, sizes: Iterator[int]) -> None:
        """Add host buffers for one more segment of each of these lengths."""
        for nbytes in sizes:
            buffers = self._buffers.setdefault(nbytes, [])
            if len(buffers) < BUFFERS:
                memory = self.engine.pinned.take(nbytes)
                buffers.append(HostBuffer(memory, self._prepare([(self.peer, memory)], self.tag)))

    def free_buffer(self, nbytes: int) -> HostBuffer | None:
        """Return a free host buffer; None if all are busy."""
        return next((buffer for buffer in self._buffers[nbytes] if not buffer.busy), None)

    def add(self, message: "StagedMessage") -> None:
        message.rewind()
        self._waiting.append(message)

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._posted)

    def progress(self) -> None:
        for message in self._waiting:
            if not message.begin():
                break  # no host buffer is free, and later messages must not be posted before this one
        while self._waiting and self._waiting[0].ready():
            message = self._waiting.popleft()
            message.start()
            self._posted.append(message)
        if self._posted:
            self._posted = [message for message in self._posted if not message.finish()]

    def settle(self) -> None:
        self.progress()
        while self._waiting and (copied := self._waiting[0].copied) is not None:
            copied.wait()
            self.progress()


class StagedMessage:
    """One message of a channel: of device memory by a host buffer, or of host memory directly, by a message of its
    own.
    """

    __slots__ = ("_buffer", "array", "channel", "copied", "done", "message")

    def __init__(self, channel: Channel, array, message: Handle | None = None):
        self.channel, self.array, self.message = channel, array, message
        self.rewind()
        self.done = True

    def rewind(self) -> None:
        self._buffer: HostBuffer | None = None
        self.copied: CopyEvent | None = None
        self.done = False

    def begin(self) -> bool:
        """Take a host buffer, and copy a send into it. Returns whether the message has one."""
        if self.array is None or self._buffer is not None:
            return True
        buffer = self.channel.free_buffer(self.array.size)
        if buffer is None:
            return False
        buffer.busy, self._buffer, self.message = True, buffer, buffer.message
        if self.channel.sending:
            self.copied = self.channel.engine.copy_down(self.array, buffer.memory)
        return True

    def ready(self) -> bool:
        """Whether its message may start."""
        if self.array is None:
            return True
        return self._buffer is not None and (self.copied is None or self.copied.done())

    def start(self) -> None:
        """Start its message, once it is ready."""
        assert self.message is not None, "a message that is ready has its buffer's"
        self.message.start()

    def finish(self) -> bool:
        """Whether it is done: its message, and the copy of a receive to the device."""
        assert self.message is not None, "it has started"
        if (self.channel.sending or self.copied is None) and not self.message.test():
            return False
        if self._buffer is not None:
            if not self.channel.sending:
                self.copied = self.copied or self.channel.engine.copy_up(self._buffer.memory, self.array)
                if not self.copied.done():
                    return False
            self._buffer.busy = False
        self.done = True
        return True
