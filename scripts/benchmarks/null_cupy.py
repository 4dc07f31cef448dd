"""CuPy without a device: its arrays on invented addresses, and calls of the driver that only count.

What is left of an iteration is Python: that of ringtrain, its runtime over CuPy included, and of CuPy's arrays. Neither
a device nor a driver is needed.
"""

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


class NullCupy:
    """The module. ``log``: (name, bytes) of each piece of work, and a list of these for a graph that was launched."""

    def __init__(self):
        self._real, self._next = import_cupy(), FIRST_ADDRESS
        self.ndarray, self.log, self._recorded = self._real.ndarray, [], None
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                getDeviceProperties=lambda index: PROPERTIES,
                driverGetVersion=lambda: 13000,
                runtimeGetVersion=lambda: 13000,
                setDevice=nothing,
                memGetInfo=lambda: (FREE_BYTES, FREE_BYTES),
                memcpyDefault=4,
                memcpyAsync=lambda to, source, nbytes, kind, stream: self._issue(COPY, 2 * nbytes),
                memsetAsync=lambda address, value, nbytes, stream: self._issue(COPY, nbytes),
                eventQuery=lambda event: 0,
            ),
            nvrtc=SimpleNamespace(
                getSupportedArchs=lambda: (90,),
                getVersion=lambda: ("none",),
                createProgram=nothing,
                compileProgram=nothing,
                getCUBIN=lambda program: b"",
                destroyProgram=nothing,
                NVRTCError=OSError,
            ),
            get_cuda_path=nothing,
            Memory=self._allocate,
            MemoryPointer=lambda memory, offset: memory,
            Stream=self._stream,
            Event=lambda disable_timing: SimpleNamespace(ptr=0, record=nothing, synchronize=nothing),
            alloc_pinned_memory=lambda nbytes: np.zeros(nbytes, np.uint8),
            get_elapsed_time=lambda before, after: 1e-3,
        )

    def _issue(self, name: str, nbytes: int) -> None:
        (self.log if self._recorded is None else self._recorded).append((name, nbytes))

    def _stream(self, non_blocking: bool) -> SimpleNamespace:
        stream = SimpleNamespace(synchronize=nothing, wait_event=nothing)
        stream.ptr, stream.begin_capture, stream.end_capture = id(stream), self._begin, self._end
        return stream

    def _begin(self) -> None:
        self._recorded = []

    def _end(self) -> SimpleNamespace:
        work, self._recorded = self._recorded, None
        return SimpleNamespace(launch=lambda stream: self.log.append(work))

    def get_default_memory_pool(self) -> SimpleNamespace:
        return SimpleNamespace(malloc=self._allocate, free_bytes=lambda: 0, free_all_blocks=nothing)

    def _allocate(self, nbytes: int):
        memory = self._real.cuda.UnownedMemory(self._next, max(1, nbytes), self, 0)
        self._next += -(-max(1, nbytes) // ALIGNMENT) * ALIGNMENT
        return self._real.cuda.MemoryPointer(memory, 0)

    def RawModule(self, path: str) -> SimpleNamespace:
        def function(name: str) -> SimpleNamespace:
            def launch(blocks, threads, values, shared_bytes, stream) -> None:
                self._issue(name, sum(each.nbytes for each in values if not isinstance(each, np.generic)))

            return SimpleNamespace(kernel=launch, max_dynamic_shared_size_bytes=0)

        return SimpleNamespace(get_function=function)


def nothing(*arguments) -> None:
    """Nothing is under way."""
