"""A CuPy that is not there: so much of it as CupyRuntime uses, on memory of the host, done at once.

It keeps CUDA's ways: cuBLAS reads column by column on the current stream, what is captured is not done. ``log``: what
was asked for.
"""

import ctypes
from types import SimpleNamespace

import numpy as np

NOT_READY = 600
TYPES = {0: np.float32, 1: np.float64, 2: np.float16}


class CUDARuntimeError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class CompileException(Exception):
    pass


class CUBLASError(RuntimeError):
    pass


class Memory:
    def __init__(self, size, owner):
        self.bytes = np.zeros(size, np.uint8)
        self.owner = owner


class MemoryPointer:
    def __init__(self, memory, offset):
        self.memory, self.ptr = memory, memory.address + offset


class Array:
    def __init__(self, shape, dtype, data):
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype, self.data = np.dtype(dtype), data
        self.size = int(np.prod(self.shape, dtype=np.int64))

    def host(self):
        """Its elements, as the memory has them now."""
        count = self.size * self.dtype.itemsize
        return np.frombuffer(ctypes.string_at(self.data.ptr, count), self.dtype).reshape(self.shape)


class Stream:
    def __init__(self, fake, non_blocking):
        assert non_blocking
        self.fake, self.ptr, self.captured = fake, id(self), None

    def __enter__(self):
        self.fake.current.append(self)

    def __exit__(self, *_):
        self.fake.current.pop()

    def synchronize(self):
        self.fake.do("synchronize", self)

    def wait_event(self, event):
        self.fake.do("wait", self)

    def begin_capture(self):
        self.captured = []
        self.fake.do("begin", self)

    def end_capture(self):
        work, self.captured = self.captured, None
        self.fake.do("end", self)
        return SimpleNamespace(launch=lambda stream: [each() for each in work])


class Event:
    def __init__(self, disable_timing):
        self.disable_timing, self.ptr = disable_timing, [NOT_READY]

    def record(self, stream):
        stream.fake.do("record", stream)

    def synchronize(self):
        if self.ptr[0] not in (0, NOT_READY):
            raise CUDARuntimeError(f"cudaError {self.ptr[0]}")
        self.ptr[0] = 0


class FakeCupy:
    """The module. ``total``: bytes of the device. ``faults``: what is raised by name of a call, once."""

    ndarray = Array

    def __init__(self, total=1 << 20, driver=13000, count=1, capability=(9, 0)):
        self.total, self.free, self.driver, self.count, self.capability = total, total, driver, count, capability
        self.log, self.current, self.faults, self.handles = [], [], {}, {}
        self.cuda = SimpleNamespace(
            runtime=_runtime(self),
            cublas=_cublas(self),
            Stream=lambda non_blocking: Stream(self, non_blocking),
            Event=Event,
            Memory=lambda size: self.allocate(size).memory,
            MemoryPointer=MemoryPointer,
            UnownedMemory=lambda address, size, owner, device_id: SimpleNamespace(address=address),
            alloc_pinned_memory=lambda size: bytearray(size + 100),
            get_elapsed_time=lambda earlier, later: 250.0,
        )

    def do(self, name, stream=None):
        self.log.append(name)
        if name in self.faults:
            raise self.faults.pop(name)

    def get_default_memory_pool(self):
        return SimpleNamespace(
            malloc=self.allocate, free_bytes=lambda: 0, free_all_blocks=lambda: self.do("free blocks")
        )

    def allocate(self, size):
        self.do("allocate")
        if size > self.free:
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
        self.free -= size
        memory = Memory(size, self)
        memory.address = memory.bytes.ctypes.data
        return MemoryPointer(memory, 0)

    def RawModule(self, code, options):
        assert isinstance(options, tuple)
        self.do("compile")
        self.options = options
        return SimpleNamespace(get_function=lambda name: _kernel(self, name))


def _kernel(fake, name):
    def launch(blocks, threads, arguments, shared_bytes, stream):
        fake.log.append((name, blocks, threads, arguments, shared_bytes, stream))

    return SimpleNamespace(kernel=launch, num_regs=32, shared_size_bytes=128, max_dynamic_shared_size_bytes=None)


def _stream_of(fake, ptr):
    return ctypes.cast(ptr, ctypes.py_object).value


def _runtime(fake):
    def on(stream, work):
        captured = _stream_of(fake, stream).captured
        if captured is None:
            work()
        else:
            captured.append(work)

    def copy(target, source, size, kind, stream):
        assert kind == 4
        fake.do("memcpy")
        on(stream, lambda: ctypes.memmove(target, source, size))

    def clear(target, value, size, stream):
        on(stream, lambda: ctypes.memset(target, value, size))

    def count():
        fake.do("count")
        return fake.count

    def enter(index):
        fake.do("enter")

    properties = {
        "name": b"Fake", "major": fake.capability[0], "minor": fake.capability[1], "multiProcessorCount": 132,
        "sharedMemPerBlockOptin": 232448, "uuid": bytes(range(120, 136)),
    }  # fmt: skip
    return SimpleNamespace(
        eventQuery=lambda pointer: pointer[0],
        driverGetVersion=lambda: fake.driver,
        runtimeGetVersion=lambda: 13020,
        getDeviceCount=count,
        setDevice=enter,
        memGetInfo=lambda: (fake.free, fake.total),
        getDeviceProperties=lambda index: properties,
        memcpyAsync=copy,
        memcpyDefault=4,
        memsetAsync=clear,
        ipcGetMemHandle=lambda address: address.to_bytes(64, "little"),
        ipcOpenMemHandle=lambda name: int.from_bytes(name, "little"),
        ipcCloseMemHandle=lambda address: fake.do("close"),
        CUDA_R_32F=0,
        CUDA_R_64F=1,
        CUDA_R_16F=2,
        CUDA_R_16BF=14,
    )


def _cublas(fake):
    def gemm(
        handle, order_a, order_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, kind, algo
    ):
        assert (handle, algo) == ("handle", -1) and fake.current
        fake.log.append(("gemm", kind))
        left, right = _columns(a, a_type, order_a, m, k, lda), _columns(b, b_type, order_b, k, n, ldb)
        out = _columns(c, c_type, "N", m, n, ldc)
        wide = ctypes.c_double if a_type == 1 else ctypes.c_float
        first, second = (wide.from_address(each).value for each in (alpha, beta))
        out[...] = first * (left.astype(np.float64) @ right) + (second * out if second else 0)

    return SimpleNamespace(
        create=lambda: "handle", gemmEx=gemm, CUBLAS_OP_N="N", CUBLAS_OP_T="T", CUBLAS_GEMM_DEFAULT=-1,
        CUBLAS_COMPUTE_32F="float32", CUBLAS_COMPUTE_32F_FAST_TF32="tf32", CUBLAS_COMPUTE_64F="float64",
    )  # fmt: skip


def _columns(address, kind, order, rows, columns, stride):
    """The matrix that cuBLAS sees, which is ``rows`` × ``columns`` after it is transposed, or not."""
    dtype = np.dtype(TYPES[kind])
    height, width = (rows, columns) if order == "N" else (columns, rows)
    count = (width - 1) * stride + height
    flat = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)
    seen = np.lib.stride_tricks.as_strided(flat, (height, width), (dtype.itemsize, stride * dtype.itemsize))
    return seen if order == "N" else seen.T
