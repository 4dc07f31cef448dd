"""The MPI's own collectives on device memory, by way of host memory.

An all-reduce waits for its copy to the host before it starts in the MPI. Collectives must start in one order on all
ranks, and a copy may end sooner on one rank than on another: so all-reduces start in the order of their calls, and
before any other collective.
"""

import threading
from collections import deque

import numpy as np

from ringtrain.arrays import Array
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.device.staging import CopyEngine, CopyEvent
from ringtrain.transport.waiting import wait_for

# MPIs have no bfloat16: they take it for whole numbers, or for bytes, add those, and report success. Few have float16.
WIDENED = ("bfloat16", "float16")


class StagedAllReduces:
    """All-reduces of device memory over ``inner``."""

    def __init__(self, inner: Transport, engine: CopyEngine):
        self.inner, self.engine = inner, engine
        self._waiting: deque[StagedSum] = deque()
        self._lock = threading.Lock()

    def blocking(self, span: Array, op: str) -> None:
        memory = self.engine.pinned.take(_nbytes(span))
        self.engine.copy_down(span, memory).wait()
        host = _wide(memory, span.dtype)
        self.inner.native_allreduce(host, op)
        _narrow(host, memory, span.dtype)
        self.engine.copy_up(memory, span).wait()
        self.engine.pinned.give(memory)

    def started(self, span: Array) -> Handle:
        handle = StagedSum(self, span)
        handle.start()
        return handle

    def wait_in_line(self, sum: "StagedSum") -> None:
        with self._lock:
            self._waiting.append(sum)

    def begin_ready(self) -> None:
        """Start the all-reduces whose copies are done, up to the first that is not."""
        with self._lock:
            while self._waiting and self._waiting[0].copied.done():
                self._waiting.popleft().begin()

    def begin_all(self) -> None:
        with self._lock:
            while self._waiting:
                self._waiting[0].copied.wait()
                self._waiting.popleft().begin()


class StagedSum(Handle):
    """One all-reduce in flight: copied to the host, summed by the MPI, copied back."""

    def __init__(self, sums: StagedAllReduces, span: Array):
        self._sums, self._span, self._done = sums, span, True
        self._memory: np.ndarray
        self._host: np.ndarray

    def start(self) -> None:
        self._memory = self._sums.engine.pinned.take(_nbytes(self._span))
        self._inner: Handle | None = None
        self._up: CopyEvent | None = None
        self._done = False
        self.copied = self._sums.engine.copy_down(self._span, self._memory)
        self._sums.wait_in_line(self)

    def begin(self) -> None:
        self._host = _wide(self._memory, self._span.dtype)
        self._inner = self._sums.inner.native_allreduce_start(self._host)

    def test(self) -> bool:
        self._sums.engine.progress()
        if self._done:
            return True
        self._sums.begin_ready()
        if self._inner is None or (self._up is None and not self._inner.test()):
            return False
        if self._up is None:
            _narrow(self._host, self._memory, self._span.dtype)
            self._up = self._sums.engine.copy_up(self._memory, self._span)
        if not self._up.done():
            return False
        self._sums.engine.pinned.give(self._memory)
        self._done = True
        return True

    def wait(self, deadline_s: float) -> None:
        wait_for(self.test, deadline_s, lambda: "all ranks to all-reduce", patience=self._sums.inner.patience)


def _nbytes(span: Array) -> int:
    return span.size * span.dtype.itemsize


def _wide(memory: np.ndarray, dtype) -> np.ndarray:
    """Return the numbers in a type that MPIs add: the memory itself, or a copy of it in float32."""
    numbers = memory.view(dtype)
    return numbers.astype(np.float32) if dtype.name in WIDENED else numbers


def _narrow(host: np.ndarray, memory: np.ndarray, dtype) -> None:
    if dtype.name in WIDENED:
        memory.view(dtype)[...] = host
