"""CUDA on the host: the kernels compiled with g++, on memory that is out of reach, done when someone waits for it.

What a device would do wrong without a word, this refuses: an allocation or a wait within a recording, an array of
another device, too many threads, too few arguments; what was written out of bounds is told at the next wait.
"""

import ctypes
import itertools
import json
import os
import weakref

import numpy as np

from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.ops.cuda.boxes import TensorMap
from ringtrain.ops.cuda.cublas import check_product
from ringtrain.ops.cuda.cupy_runtime import CupyRuntime
from ringtrain.ops.cuda.faults import lacking
from ringtrain.ops.cuda.pinned import PinnedMemory
from ringtrain.ops.cuda.runtime import Facts
from tests.fakes import host_kernels, tensor_maps
from tests.fakes.host_memory import NAME_BYTES, Allocations, DeviceArray, SharedMemory, is_there, open_shared, poison
from tests.fakes.host_streams import HostStream, Scheduler, recording

MOST_THREADS, MOST_BLOCKS = (1024, 1024, 64), (2**31 - 1, 65535, 65535)
SHARED_BYTES = 227 * 1024
SERIALS = itertools.count()


class HostKernel:
    def __init__(self, runtime, name, function, parameters):
        self._runtime, self._name, self._function, self._parameters = runtime, name, function, parameters

    def launch(self, blocks, threads, stream, arguments, shared_bytes):
        dims = (*_padded(blocks), *_padded(threads))
        self._check(dims, shared_bytes, arguments)
        values = [self._value(*pair) for pair in zip(self._parameters, arguments, strict=True)]
        operands = {"arguments": [self._operand(each) for each in arguments], "extents": [*dims, shared_bytes]}
        stream.issue(self._name, lambda: self._run(values, dims, shared_bytes, arguments), operands)

    def _operand(self, argument):
        if isinstance(argument, TensorMap):
            argument = argument.array
        return self._runtime.memory_of(argument) if isinstance(argument, DeviceArray) else argument

    def _check(self, dims, shared_bytes, arguments):
        blocks_fit = all(1 <= got <= most for got, most in zip(dims[:3], MOST_BLOCKS, strict=True))
        threads_fit = all(1 <= got <= most for got, most in zip(dims[3:], MOST_THREADS, strict=True))
        if not (blocks_fit and threads_fit and np.prod(dims[3:]) <= 1024):
            raise DeviceError(f"kernel {self._name}: {dims[:3]} blocks of {dims[3:]} threads is not a launch")
        if shared_bytes > SHARED_BYTES:
            raise DeviceError(f"kernel {self._name}: {shared_bytes} bytes of shared memory; a block has {SHARED_BYTES}")
        if len(arguments) != len(self._parameters):
            raise DeviceError(f"kernel {self._name}: {len(arguments)} arguments for {len(self._parameters)} parameters")

    def _value(self, parameter, argument):
        """The argument's bytes."""
        if parameter.array:
            return np.uint64(0 if argument is None else self._runtime.address(argument))
        if isinstance(argument, TensorMap):
            return argument.value
        if not isinstance(argument, parameter.scalar):
            raise DeviceError(f"kernel {self._name}: {parameter} got {argument!r} of {type(argument).__name__}")
        return argument

    def _run(self, values, dims, shared_bytes, _kept_alive):
        cells = [np.array([value]) for value in values]
        pointers = (ctypes.c_void_p * len(cells))(*[cell.ctypes.data for cell in cells])
        extents = (ctypes.c_uint * 6)(*dims)
        message = self._function(pointers, extents, shared_bytes)
        if message:
            raise DeviceError(f"kernel {self._name} failed: {message.decode()}")


def _padded(extents):
    return (*extents, 1, 1)[:3]


class HostRuntime:
    """It keeps the contract of ``CupyRuntime``, to which tests/ops/test_cuda_runtime.py holds both.

    ``hasty``: other streams run ahead of the one that is waited for, as far as events let them. ``quick``: work is
    done when an event asks for it. ``total``: bytes of its memory, of which ``used`` are its own, and ``others`` those
    of other processes."""

    records = True
    timed = CupyRuntime.timed

    def __init__(self, hasty=False, quick=False, total=1 << 34, others=1 << 33):
        self.facts = Facts("host", (9, 0), 4, SHARED_BYTES, (13, 0), (13, 0), f"host-{os.getpid()}-{next(SERIALS)}")
        self.modules = 0, 0
        self._allocations = Allocations()
        self._scheduler = Scheduler(hasty, quick, self._check_bounds)
        self._pinned = PinnedMemory()
        self._wholes = weakref.WeakValueDictionary()  # memory by its address: what was made by whole()
        self._names = {}
        self._opened = {}
        self.hasty, self.total, self.others = hasty, total, others

    @property
    def used(self):
        return self._allocations.nbytes

    @property
    def arriving(self):
        return self._scheduler.arriving

    def waiting(self):
        """The work that is still to be done, of all streams."""
        return [work for stream in self._scheduler.streams for work in stream.work]

    def _check_bounds(self):
        damage = self._allocations.damaged()
        if damage:
            raise DeviceError(damage)

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def empty(self, shape, dtype):
        self._scheduler.refuse_while_recording("an array was allocated")
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        free = self.total - self.others - self.used
        if nbytes > free:
            raise DeviceFullError(lacking(nbytes, free, self.total, 0))
        return self.adopt(self._allocations.new(shape, dtype))

    def adopt(self, memory):
        """Host memory as this device's."""
        return DeviceArray(memory, self)

    def whole(self, nbytes):
        self._scheduler.refuse_while_recording("an array was allocated")
        shared = SharedMemory(max(1, nbytes))
        poison(shared.memory)
        address = shared.memory.ctypes.data
        self._wholes[address], self._names[address] = shared.memory, shared.name
        return DeviceArray(shared.memory[:nbytes], self)

    def view(self, array, dtype):
        return DeviceArray(self.memory_of(array).reshape(-1).view(dtype), self)

    def pinned(self, nbytes):
        self._scheduler.refuse_while_recording("pinned memory was allocated")
        memory = np.empty(max(1, nbytes), np.uint8)
        poison(memory)
        self._pinned.add(memory)
        return memory[:nbytes]

    def address(self, array):
        return self.memory_of(array).ctypes.data

    def tensor_map(self, array, boxes):
        return TensorMap(tensor_maps.encode(self.memory_of(array), boxes), array)

    def memory(self):
        return self.total - self.others - self.used, self.total

    def memory_of(self, array):
        """The host memory that a device array is in."""
        if not isinstance(array, DeviceArray):
            raise DeviceError(f"an array of a device is wanted, not {type(array).__name__}")
        if array._device is not self:
            raise DeviceError("an array of another device")
        return array._memory

    def is_pinned(self, host):
        if not (isinstance(host, np.ndarray) and host.flags.c_contiguous):
            raise DeviceError(f"{type(host).__name__} is not in host memory")
        return self._pinned.holds(host.ctypes.data, host.nbytes)

    # ── copies ────────────────────────────────────────────────────────────────────────────────────────────────
    def upload(self, host, array, stream):
        if not self.is_pinned(host):
            self._scheduler.refuse_while_recording("memory that is not pinned was copied")
            host = host.copy()
        self._copy("upload", _bytes(host), _bytes(self.memory_of(array)), stream)

    def download(self, array, host, stream):
        pinned = self.is_pinned(host)
        if not pinned:
            self._scheduler.refuse_while_recording("memory that is not pinned was copied")
        elif self._scheduler.recording is None:
            poison(host)  # it is not there yet
        self._copy("download", _bytes(self.memory_of(array)), _bytes(host), stream)
        if not pinned:
            stream.synchronize()

    def copy(self, source, target, stream):
        self._copy("copy", _bytes(self.memory_of(source)), _bytes(self.memory_of(target)), stream)

    def _copy(self, name, source, target, stream):
        if source.size != target.size:
            raise DeviceError(f"copies {source.size} to {target.size} elements")
        stream.issue(name, lambda: np.copyto(target, source), {"source": source, "target": target})

    def clear(self, array, stream):
        memory = _bytes(self.memory_of(array))
        stream.issue("clear", lambda: memory.fill(0), {"target": memory})

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────
    def stream(self):
        return HostStream(self._scheduler)

    def compile(self, source, name, options, architecture=None):
        self._scheduler.refuse_while_recording(f"{name} was compiled")
        functions, parameters, fresh = host_kernels.build(source, name, options)
        compiled, loaded = self.modules
        self.modules = (compiled + 1, loaded) if fresh else (compiled, loaded + 1)
        return {each: HostKernel(self, each, functions[each], parameters[each]) for each in parameters}

    def record(self, stream):
        return recording(stream)

    def product(self, a, b, c, accumulate, precise, stream):
        check_product(a, b, c)
        if stream.workspace is None:
            stream.workspace = self.empty(1, "uint8")
        left, right, out = (_matrix(self.memory_of(each.array), each) for each in (a, b, c))
        operands = {"arrays": [left, right, out], "how": [accumulate, precise]}
        stream.issue("product", lambda: multiply(left, right, out, accumulate, precise), operands)

    # ── between processes ─────────────────────────────────────────────────────────────────────────────────────
    def share(self, array):
        whole = self._wholes.get(self.address(array))
        if whole is None or whole.size != max(1, array.size * array.dtype.itemsize):
            raise DeviceError("only a whole array, of Runtime.whole, can be shared")
        return json.dumps([self._names[self.address(array)], self.facts.uuid]).encode().ljust(NAME_BYTES)

    def open(self, name, nbytes):
        if len(name) < NAME_BYTES:
            raise DeviceError(f"a name of {len(name)} bytes; it has {NAME_BYTES}")
        path, owner = json.loads(name)
        if owner == self.facts.uuid:
            raise DeviceError("an array cannot be opened by the device that shared it")
        if path in self._opened.values():
            raise DeviceError("this allocation is open already")
        if not is_there(path):
            raise DeviceError("it was opened after its owner gave it up")
        memory = open_shared(path, max(1, nbytes))[:nbytes]
        self._opened[memory.ctypes.data] = path
        return DeviceArray(memory, self)

    def close(self, array):
        path = self._opened.pop(self.address(array), None)
        if path is None:
            raise DeviceError("close() of an array that is not open")
        if not is_there(path):
            raise DeviceError("an array was closed after its owner had freed it")


def _bytes(memory):
    return memory.reshape(-1).view(np.uint8)


def _matrix(memory, matrix):
    """The part of the array, with rows and columns as they are multiplied."""
    rows, columns = (matrix.columns, matrix.rows) if matrix.transposed else (matrix.rows, matrix.columns)
    flat = memory.reshape(-1)
    last = matrix.start + (rows - 1) * matrix.stride + columns
    if rows and columns and (last > flat.size or matrix.stride < columns):
        raise DeviceError(f"a matrix of {rows} rows of {columns}, {matrix.stride} apart, in an array of {flat.size}")
    strides = matrix.stride * flat.itemsize, flat.itemsize
    whole = np.lib.stride_tricks.as_strided(flat[matrix.start :], (rows, columns), strides)
    return whole.T if matrix.transposed else whole


def multiply(left, right, out, accumulate, precise):
    wide = np.float64 if left.dtype == np.float64 else np.float32
    left, right = left.astype(wide), right.astype(wide)
    if wide is np.float32 and not precise:
        left, right = _short(left), _short(right)
    result = left @ right + (out.astype(wide) if accumulate else 0)
    out[...] = result.astype(out.dtype)


def _short(x):
    """Rounded to the 10 bits of mantissa of TF32; a 16-bit type has no more."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
