"""Device memory handed to the MPI by its address: for an MPI that can read and write a device's memory.

Only contiguous messages from one rank to another go this way: an MPI that moves device memory may still run reductions,
and its own copies within collectives, as host code.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ringtrain.transport.base import Handle, Moves, Transport
from ringtrain.transport.buffers import Raw
from ringtrain.transport.device.staging import Prepare


class DirectHandle(Handle):
    """A handle of the inner transport that makes the device current before every call: CUDA's current device belongs to
    a thread, and an MPI reads it.
    """

    def __init__(self, inner: Handle, enter: Callable[[], None]):
        self._inner, self._enter = inner, enter

    def start(self) -> None:
        self._enter()
        self._inner.start()

    def test(self) -> bool:
        self._enter()
        return self._inner.test()

    def wait(self, deadline_s: float) -> None:
        self._enter()
        self._inner.wait(deadline_s)

    def free(self) -> None:
        self._inner.free()


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
