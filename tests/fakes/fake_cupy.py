"""So much of CuPy as ringtrain's own rules need around it: it says what it was asked for, and computes nothing.

What CuPy takes and does is held against CuPy itself: tests/ops/test_ops_cuda_compile.py, and on a device
tests/ops/test_cuda_runtime.py.
"""

import itertools
from types import SimpleNamespace

import numpy as np

NOT_READY = 600


class CUDARuntimeError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class CompileException(Exception):
    def __init__(self, message, *about):
        super().__init__(message)
        self.about = about


class NVRTCError(RuntimeError):
    pass


class FakeCupy:
    """The module. ``log``: what was asked for. ``faults``: what is raised by name of a call, once."""

    def __init__(self, driver=13000, count=1, capability=(9, 0)):
        self.log, self.faults, self.free, self.count = [], {}, 1 << 20, count
        self._addresses = itertools.count(4096, 4096)
        properties = {
            "name": b"Fake", "major": capability[0], "minor": capability[1], "multiProcessorCount": 132,
            "sharedMemPerBlockOptin": 232448, "uuid": bytes(range(120, 136)),
        }  # fmt: skip
        runtime = SimpleNamespace(
            driverGetVersion=lambda: driver,
            runtimeGetVersion=lambda: 13020,
            getDeviceCount=lambda: self.do("count") or self.count,
            setDevice=lambda index: self.do("enter"),
            memGetInfo=lambda: (self.free, 1 << 20),
            getDeviceProperties=lambda index: properties,
            eventQuery=lambda pointer: pointer[0],
            memcpyAsync=lambda *_: self.do("memcpy"),
            memcpyDefault=4,
            ipcGetMemHandle=lambda address: address.to_bytes(64, "little"),
            ipcOpenMemHandle=lambda name: int.from_bytes(name, "little"),
            ipcCloseMemHandle=lambda address: self.do("close"),
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Stream=lambda non_blocking: FakeStream(self),
            Event=lambda disable_timing: FakeEvent(),
            Memory=self._allocate,
            MemoryPointer=lambda memory, offset: memory,
            UnownedMemory=lambda address, *_: SimpleNamespace(ptr=address),
            alloc_pinned_memory=lambda size: bytearray(size),
            nvrtc=FakeCompiler(self),
            compiler=SimpleNamespace(CompileException=CompileException),
        )

    def ndarray(self, shape, dtype, data):
        shape = (shape,) if isinstance(shape, int) else shape
        return SimpleNamespace(shape=shape, dtype=np.dtype(dtype), size=int(np.prod(shape)), data=data)

    def do(self, name):
        self.log.append(name)
        if name in self.faults:
            raise self.faults.pop(name)

    def get_default_memory_pool(self):
        return SimpleNamespace(malloc=self._allocate, free_bytes=int, free_all_blocks=lambda: self.do("free blocks"))

    def _allocate(self, size):
        self.do("allocate")
        if size > self.free:
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
        return SimpleNamespace(ptr=next(self._addresses))

    def RawModule(self, path):
        self.do(f"load {path}")

        def launch(*arguments):
            self.log.append(arguments)

        return SimpleNamespace(
            get_function=lambda name: SimpleNamespace(kernel=launch, max_dynamic_shared_size_bytes=None)
        )


class FakeCompiler:
    """NVRTC as CuPy has it: ``fails``: whether it accepts no source."""

    NVRTCError, fails = NVRTCError, False

    def __init__(self, cupy):
        self._cupy = cupy

    def getVersion(self):
        return 13, 0

    def getSupportedArchs(self):
        return 80, 89, 90, 100

    def createProgram(self, source, name, headers, include_names):
        return 1

    def compileProgram(self, program, options):
        self._cupy.log.append(options)
        self._cupy.do("compile")
        if self.fails:
            raise NVRTCError("NVRTC_ERROR_COMPILATION (6)")

    def getCUBIN(self, program):
        return b"\x7fELF without its last byte"

    def getProgramLog(self, program):
        return "a.cu(1): error"

    def destroyProgram(self, program):
        self._cupy.do("destroy")


class FakeStream:
    def __init__(self, cupy):
        self._cupy, self.ptr = cupy, id(self)

    def synchronize(self):
        self._cupy.do("synchronize")

    def begin_capture(self):
        self._cupy.do("begin")

    def end_capture(self):
        self._cupy.do("end")


class FakeEvent:
    def __init__(self):
        self.ptr = [NOT_READY]

    def record(self, stream):
        pass

    def synchronize(self):
        if self.ptr[0] != NOT_READY:
            raise CUDARuntimeError(f"cudaError {self.ptr[0]}")
