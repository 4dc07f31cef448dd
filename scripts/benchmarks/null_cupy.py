"""CuPy without a device: its arrays on invented addresses, and calls of the driver that only count.

What is left of an iteration is Python: that of ringtrain, its runtime over CuPy included, and of CuPy's arrays. Neither
a device nor a driver is needed.
"""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from ringtrain.ops.cuda.checks import import_cupy

FIRST_ADDRESS, ALIGNMENT = 1 << 40, 512
FREE_BYTES = 80 << 30
PROPERTIES = {
    "name": b"none", "major": 9, "minor": 0, "multiProcessorCount": 132, "sharedMemPerBlockOptin": 227 << 10,
    "uuid": bytes(range(1, 17)),
}  # fmt: skip
COPY = "copy"  # of any kind, and the clearing of memory


@dataclass(slots=True)
class Issued:
    """The work of some iterations. launches, copies: one by one; nodes: of graphs; kernels, nbytes: of both, the bytes
    those of the arrays that each is given"""

    launches: int = 0
    copies: int = 0
    graphs: int = 0
    nodes: int = 0
    kernels: Counter = field(default_factory=Counter)
    nbytes: Counter = field(default_factory=Counter)

    def add(self, name: str, nbytes: int) -> None:
        self.kernels[name] += 1
        self.nbytes[name] += nbytes


class NullCupy:
    """The module. ``log``: (name, bytes) of each piece of work, and graphs that were launched."""

    def __init__(self):
        cupy = import_cupy()
        self.ndarray, self._real, self._next = cupy.ndarray, cupy, FIRST_ADDRESS
        self.log: list = []
        self.recorded: list | None = None
        runtime = SimpleNamespace(
            getDeviceProperties=lambda index: PROPERTIES,
            driverGetVersion=lambda: 13000,
            runtimeGetVersion=lambda: 13000,
            setDevice=lambda index: None,
            memGetInfo=lambda: (FREE_BYTES, FREE_BYTES),
            memcpyDefault=4,
            memcpyAsync=lambda to, source, nbytes, kind, stream: self.issue(COPY, 2 * nbytes),
            memsetAsync=lambda address, value, nbytes, stream: self.issue(COPY, nbytes),
            eventQuery=lambda event: 0,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Memory=self._allocate,
            MemoryPointer=lambda memory, offset: memory,
            Stream=lambda non_blocking: NullStream(self),
            Event=lambda disable_timing: NullEvent(),
            alloc_pinned_memory=lambda nbytes: np.zeros(nbytes, np.uint8),
            get_elapsed_time=lambda before, after: 1e-3,
        )

    def issue(self, name: str, nbytes: int) -> None:
        (self.log if self.recorded is None else self.recorded).append((name, nbytes))

    def get_default_memory_pool(self):
        return SimpleNamespace(malloc=self._allocate, free_bytes=lambda: 0, free_all_blocks=lambda: None)

    def _allocate(self, nbytes: int):
        memory = self._real.cuda.UnownedMemory(self._next, max(1, nbytes), self, 0)
        self._next += -(-max(1, nbytes) // ALIGNMENT) * ALIGNMENT
        return self._real.cuda.MemoryPointer(memory, 0)

    def RawModule(self, code, options):
        def function(name: str):
            launch = NullFunction(self, name)
            return SimpleNamespace(kernel=launch, max_dynamic_shared_size_bytes=0)

        return SimpleNamespace(get_function=function)

    def take(self) -> Issued:
        """Return the work since the last call."""
        found, log = Issued(), self.log
        self.log = []
        for each in log:
            if isinstance(each, NullGraph):
                found.graphs += 1
                found.nodes += len(each.work)
                for work in each.work:
                    found.add(*work)
            else:
                found.add(*each)
                found.copies += each[0] == COPY
                found.launches += each[0] != COPY
        return found


class NullFunction:
    def __init__(self, cupy: NullCupy, name: str):
        self._cupy, self._name = cupy, name

    def __call__(self, blocks, threads, values, shared_bytes, stream):
        arrays = (each for each in values if not isinstance(each, np.generic))
        self._cupy.issue(self._name, sum(each.nbytes for each in arrays))


class NullStream:
    def __init__(self, cupy: NullCupy):
        self._cupy, self.ptr = cupy, id(self)

    def synchronize(self):
        pass

    def wait_event(self, event):
        pass

    def begin_capture(self):
        self._cupy.recorded = []

    def end_capture(self):
        work, self._cupy.recorded = self._cupy.recorded, None
        return NullGraph(self._cupy, work)


class NullGraph:
    def __init__(self, cupy: NullCupy, work: list):
        self._cupy, self.work = cupy, work

    def launch(self, stream):
        self._cupy.log.append(self)


class NullEvent:
    ptr = 0

    def record(self, stream):
        pass

    def synchronize(self):
        pass
