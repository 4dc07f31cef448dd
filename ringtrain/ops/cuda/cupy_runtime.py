"""CUDA by CuPy, which is imported when a device is requested: one device's memory, streams, kernels and products.

Streams are always named, never "current"; a stream runs its work later, in the order in which it was issued. An array
is opaque, except ``.shape``, ``.dtype``, ``.size``, contiguous slices ``x[a:b]`` of the leading axis and
``x.reshape(shape)``, which are views."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.ops.cuda.boxes import Boxes, PixelBoxes, TensorMap
from ringtrain.ops.cuda.checks import check_usable, count_visible, import_cupy, version_of
from ringtrain.ops.cuda.cublas import Cublas, check_product
from ringtrain.ops.cuda.cupy_compiler import architecture_of, compiled_file
from ringtrain.ops.cuda.cupy_device import CupyDevice, CupyGraph, CupyKernel, CupyStream, as_device_errors
from ringtrain.ops.cuda.cupy_driver import encoded, uuid_of
from ringtrain.ops.cuda.faults import is_out_of_memory, lacking
from ringtrain.ops.cuda.pinned import PinnedMemory
from ringtrain.ops.cuda.runtime import Facts, Matrix
from ringtrain.ops.cuda.signatures import KERNEL


def make_runtime(index: int) -> "CupyRuntime":
    """Return device ``index`` of those that are visible to this process.

    Raises: DeviceError if it cannot be used, with a remedy."""
    cupy = import_cupy()
    check_usable(cupy, index)
    return CupyRuntime(cupy, index)


def visible_devices() -> int:
    """Return the number of devices that this process sees; none of them is touched. Raises: DeviceError without CuPy or
    a working driver."""
    return count_visible(import_cupy())


class CupyRuntime:
    """A device that :func:`check_usable` has accepted. Methods raise DeviceError with the failed action and a remedy.

    modules: number of sources (compiled anew, taken from the cache on disk)
    records: whether it can record; a runtime that times each launch cannot

    The memory of an array without references may become another array at once, even if work on it is not done: a caller
    with several streams keeps it until then."""

    records = True

    def __init__(self, cupy, index):
        self._cupy, self.device = cupy, CupyDevice(cupy, index)
        self.facts, self.modules = _facts(cupy, index), (0, 0)
        self._pinned, self._whole, self._opened = PinnedMemory(), {}, {}

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def empty(self, shape, dtype):
        """Return a new array. Refused during a recording."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = self._allocate(nbytes, self._cupy.get_default_memory_pool().malloc)
        return self._cupy.ndarray(shape, dtype, memory)

    def whole(self, nbytes: int):
        """Return a uint8 array that is an allocation of its own (plain cudaMalloc): :meth:`share` can name it, and an
        MPI can take it."""
        cupy = self._cupy
        memory = self._allocate(nbytes, lambda count: cupy.cuda.MemoryPointer(cupy.cuda.Memory(max(1, count)), 0))
        self._whole[memory.ptr] = nbytes
        return cupy.ndarray((nbytes,), np.uint8, memory)

    @as_device_errors("an allocation")
    def _allocate(self, nbytes, allocate):
        self.device.refuse_while_recording("an array was allocated")
        try:
            return allocate(nbytes)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        self._cupy.get_default_memory_pool().free_all_blocks()
        try:
            return allocate(nbytes)
        except (MemoryError, RuntimeError) as error:
            free, total = self.memory()
            raise DeviceFullError(lacking(nbytes, free, total, self.device.index)) from error

    def view(self, array, dtype):
        """Return the same bytes as a flat array of another type."""
        dtype = np.dtype(dtype)
        count = array.size * array.dtype.itemsize // dtype.itemsize
        return self._cupy.ndarray((count,), dtype, array.data)

    @as_device_errors("an allocation of pinned memory")
    def pinned(self, nbytes: int) -> np.ndarray:
        """Return a uint8 array in page-locked host memory."""
        self.device.refuse_while_recording("pinned memory was allocated")
        memory = np.frombuffer(self._cupy.cuda.alloc_pinned_memory(max(1, nbytes)), np.uint8, max(1, nbytes))
        self._pinned.add(memory)
        return memory[:nbytes]

    def address(self, array) -> int:
        return array.data.ptr

    def tensor_map(self, array, boxes: Boxes | PixelBoxes) -> TensorMap:
        """Return the map by which a kernel copies boxes of an array of 2-byte elements. Cheap if it was made before."""
        return TensorMap(encoded(array.data.ptr, array.dtype.name, boxes), array)

    @as_device_errors("asking for the memory")
    def memory(self) -> tuple[int, int]:
        """Return (free, total) bytes of the device."""
        free, total = self._cupy.cuda.runtime.memGetInfo()
        return free + self._cupy.get_default_memory_pool().free_bytes(), total

    # ── copies ────────────────────────────────────────────────────────────────────────────────────────────────
    def upload(self, host: np.ndarray, array, stream: CupyStream) -> None:
        """Copy from a C-contiguous array of the same bytes. A copy from pinned memory happens later, in the order of
        the stream, so that ``host`` must not change until then, and may be recorded; any other has read ``host`` on
        return."""
        address, _ = self._host_address(host)
        self._copy(array.data.ptr, address, _nbytes(array), host.nbytes, stream)
        self.device.keep(host, array)

    def download(self, array, host: np.ndarray, stream: CupyStream) -> None:
        """Copy to an array of NumPy; one that is not pinned is complete on return."""
        address, pinned = self._host_address(host)
        self._copy(address, array.data.ptr, host.nbytes, _nbytes(array), stream)
        self.device.keep(host, array)
        if not pinned:
            stream.synchronize()

    def copy(self, source, target, stream: CupyStream) -> None:
        """Copy between arrays of equal bytes, on this device or mapped from a peer's."""
        self._copy(target.data.ptr, source.data.ptr, _nbytes(target), _nbytes(source), stream)
        self.device.keep(source, target)

    def _host_address(self, host) -> tuple[int, bool]:
        """Return it, and whether it is pinned."""
        if not (isinstance(host, np.ndarray) and host.flags.c_contiguous):
            raise DeviceError(f"a copy takes a C-contiguous NumPy array, not {type(host).__name__}")
        address = host.ctypes.data
        pinned = self._pinned.holds(address, host.nbytes)
        if not pinned:
            self.device.refuse_while_recording("memory that is not pinned was copied")
        return address, pinned

    @as_device_errors("a copy")
    def _copy(self, target, source, nbytes, source_bytes, stream):
        """Copy by CUDA, because CuPy's own copies are refused within a recording. Copies from unpinned memory return
        when it has been read."""
        if nbytes != source_bytes:
            raise DeviceError(f"a copy of {source_bytes} bytes to {nbytes}")
        if nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDefault, stream.stream.ptr)

    @as_device_errors("clearing memory")
    def clear(self, array, stream: CupyStream) -> None:
        """Set all bytes to zero."""
        if array.size:
            self._cupy.cuda.runtime.memsetAsync(array.data.ptr, 0, _nbytes(array), stream.stream.ptr)
        self.device.keep(array)

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────
    @as_device_errors("making a stream")
    def stream(self) -> CupyStream:
        """Return a new stream, which waits for no other."""
        return CupyStream(self.device)

    @as_device_errors("the compilation of a source")
    def compile(
        self, source: str, name: str, options: tuple[str, ...], architecture: str | None = None
    ) -> dict[str, CupyKernel]:
        """Return the functions of a CUDA source by name. ``options``: -D and -I. Compiled for this device, or for the
        named architecture if it is one of few devices, or taken from the cache on disk. Raises DeviceError with the
        compiler's output."""
        self.device.refuse_while_recording(f"{name} was compiled")
        architecture = architecture or architecture_of(self._cupy, self.facts.capability)
        path, is_new = compiled_file(self._cupy, source, name, options, architecture)
        module = self._cupy.RawModule(path=str(path))
        names = [name for name, _ in KERNEL.findall(source)]
        kernels = {each: CupyKernel(self.device, module.get_function(each)) for each in names}
        compiled, loaded = self.modules
        self.modules = (compiled + is_new, loaded + (not is_new))
        return kernels

    @contextmanager
    def record(self, stream: CupyStream) -> Iterator[list[CupyGraph]]:
        """Record the work issued on the stream inside the ``with``, without running it; the list then holds the graph.
        Work on another stream is recorded too after it waits for an event of this one; this stream must then wait for
        that one. Refused inside: allocation, a stream's first :meth:`product`, copies from or to unpinned memory,
        synchronisation, waits for earlier events."""
        device, graphs, kept = self.device, list[CupyGraph](), list[object]()
        device.refuse_while_recording("another recording was begun")
        stream.begin()
        device.kept = kept
        try:
            yield graphs
        except BaseException:
            with suppress(DeviceError):  # the recording is useless, and may be invalid
                stream.end()
            raise
        finally:
            device.kept = None
        graphs.append(CupyGraph(device, stream.end(), kept))

    @as_device_errors("a matrix product of cuBLAS")
    def product(self, a: Matrix, b: Matrix, c: Matrix, accumulate: bool, precise: bool, stream: CupyStream) -> None:
        """Compute c = a · b, or c += a · b, by cuBLAS. a and b are of one type; c of that or of float32; sums in
        float32, of float64 in float64. ``precise``: float32 without TF32. c is not transposed. The first product of a
        stream allocates; later ones can be recorded."""
        check_product(a, b, c)
        if not (c.rows and c.columns):
            return
        if stream.cublas is None:
            stream.cublas = Cublas(self, stream.pointer)
        stream.cublas.multiply(a, b, c, accumulate, precise)
        self.device.keep(a.array, b.array, c.array, stream.cublas.workspace)

    def timed(self, name: str, stream: CupyStream, arrays: Sequence, work: Callable[[], None]) -> None:
        """Run ``work()``, which issues work of another library on the stream, on these arrays. A runtime that profiles
        records it here."""
        work()

    # ── between processes ─────────────────────────────────────────────────────────────────────────────────────
    @as_device_errors("sharing memory")
    def share(self, array) -> bytes:
        """Return the name of an array of :meth:`whole` for another process of this machine."""
        if self._whole.get(array.data.ptr) != _nbytes(array):
            raise DeviceError("only a whole array, of Runtime.whole, can be shared")
        return self._cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr)

    @as_device_errors("opening the memory of another process")
    def open(self, name: bytes, nbytes: int):
        """Return the array that another process named, as uint8. Once for each; not in the process that named it."""
        cupy = self._cupy
        if name in self._opened.values():
            raise DeviceError("this memory of another process is open already")
        address = cupy.cuda.runtime.ipcOpenMemHandle(name)
        self._opened[address] = name
        memory = cupy.cuda.UnownedMemory(address, nbytes, self, self.device.index)
        return cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))

    @as_device_errors("closing the memory of another process")
    def close(self, array) -> None:
        """Close an array of :meth:`open`, before its owner frees it."""
        if self._opened.pop(array.data.ptr, None) is None:
            raise DeviceError("cannot close an array that is not open")
        self._cupy.cuda.runtime.ipcCloseMemHandle(array.data.ptr)


def _nbytes(array):
    return array.size * array.dtype.itemsize


def _facts(cupy, index):
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(index)
    return Facts(
        name=properties["name"].decode(),
        capability=(properties["major"], properties["minor"]),
        processors=properties["multiProcessorCount"],
        shared_bytes=properties["sharedMemPerBlockOptin"],
        driver=version_of(runtime.driverGetVersion()),
        runtime=version_of(runtime.runtimeGetVersion()),
        uuid=uuid_of(index, properties["uuid"]),
    )
