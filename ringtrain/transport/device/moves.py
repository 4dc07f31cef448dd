"""Two ways to move spans of device memory: handed to the MPI by their address, and staged through host memory.

An MPI may read and write a device's memory, and still run reductions, and its own copies within collectives, as host
code: so only contiguous messages from one rank to another go by address. Staging is for an MPI that cannot read device
memory, or is slow at it.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ringtrain.transport.base import ForwardingHandle, Handle, Moves, TestedHandle, Transport
from ringtrain.transport.buffers import Raw
from ringtrain.transport.device.staging import CopyEngine, Prepare, StagedMessage
from ringtrain.transport.waiting import peers


class DirectHandle(ForwardingHandle):
    """A handle of the inner transport that makes the device current before every call: CUDA's current device belongs to
    a thread, and an MPI reads it.
    """

    def __init__(self, inner: Handle, enter: Callable[[], None]):
        super().__init__(inner)
        self._enter = enter

    def start(self) -> None:
        self._enter()
        super().start()

    def test(self) -> bool:
        self._enter()
        return super().test()

    def wait(self, deadline_s: float) -> None:
        self._enter()
        super().wait(deadline_s)


class Direct:
    """Sends and receives of ``inner``, also of device memory. ``runtime`` is the device's."""

    words = "passed to the MPI by address"

    def __init__(self, inner: Transport, runtime):
        self._inner, self._runtime = inner, runtime
        self._threads = threading.local()

    def sends(self, moves: Moves, tag: int) -> Handle:
        return self._handle(self._inner.sends, moves, tag)

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return self._handle(self._inner.recvs, moves, tag)

    def _handle(self, prepare: Prepare, moves: Moves, tag: int) -> Handle:
        self._enter()
        return DirectHandle(prepare([(peer, self._raw(span)) for peer, span in moves], tag), self._enter)

    def _raw(self, span: Any) -> np.ndarray | Raw:
        if isinstance(span, np.ndarray):
            return span
        return Raw(self._runtime.address(span), span.size * span.dtype.itemsize, span)

    def _enter(self) -> None:
        if getattr(self._threads, "entered", None) is None:
            self._runtime.memory()  # any question does
            self._threads.entered = True


class StagedHandle(TestedHandle):
    """Moves of device memory, and possibly of host memory too."""

    def __init__(self, engine: CopyEngine, messages: list[StagedMessage], verb: str, tag: int, inner: Transport):
        self._engine, self._messages, self._verb, self._tag = engine, messages, verb, tag
        self.patience, self._names = inner.patience, inner.world_ranks

    def start(self) -> None:
        self._engine.start(self._messages)

    def test(self) -> bool:
        self._engine.progress()
        return all(message.done for message in self._messages)

    def awaited(self) -> str:
        late = [self._names[message.channel.peer] for message in self._messages if not message.done]
        return f"{peers(late)} to {self._verb} (tag {self._tag})"


class Staged:
    """Sends and receives of ``inner``, also of device memory. Both ends of a move must be of one kind, host or device:
    device memory travels in segments.
    """

    words = "staged through pinned host memory"

    def __init__(self, inner: Transport, engine: CopyEngine):
        self._inner, self._engine = inner, engine

    def sends(self, moves: Moves, tag: int) -> Handle:
        return self._handle(True, moves, tag, self._inner.sends, "receive")

    def recvs(self, moves: Moves, tag: int) -> Handle:
        return self._handle(False, moves, tag, self._inner.recvs, "send")

    def _handle(self, sending: bool, moves: Moves, tag: int, prepare: Prepare, verb: str) -> StagedHandle:
        channels = [(self._engine.channel(sending, peer, tag, prepare), span) for peer, span in moves]
        messages = [message for channel, span in channels for message in channel.messages(span)]
        return StagedHandle(self._engine, messages, verb, tag, self._inner)
