"""The interface to CUDA: one device's memory, streams, events, kernels, graphs and products.

Streams are always named, never "current"; a stream runs its work later, in the order in which it was issued. An array
is opaque, except ``.shape``, ``.dtype``, ``.size``, contiguous slices ``x[a:b]`` of the leading axis and
``x.reshape(shape)``, which are views."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ringtrain.arrays import Array
from ringtrain.ops.base import Mark
from ringtrain.ops.cuda.boxes import Boxes, PixelBoxes, TensorMap


class Stream(ABC):
    """A stream of a device. ``pointer``: its cudaStream_t for other libraries of CUDA; None without a device."""

    pointer: int | None = None

    @abstractmethod
    def record(self, timed: bool = False) -> Mark:
        """Return an event after all work issued so far."""

    @abstractmethod
    def after(self, event: Mark) -> None:
        """Let work issued from now on wait for the event."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block this thread until all issued work is done. Raises DeviceError for a kernel's failure."""


class Kernel(ABC):
    """A function of a compiled module."""

    @abstractmethod
    def launch(
        self, blocks: tuple[int, ...], threads: tuple[int, ...], stream: Stream, arguments: Sequence, shared_bytes: int
    ) -> None:
        """``arguments``: arrays (None is a null pointer), maps and NumPy scalars, of the types of the function's
        parameters. ``shared_bytes``: dynamic shared memory, up to the device's :attr:`Facts.shared_bytes`."""


class CudaGraph(ABC):
    """Recorded work."""

    @abstractmethod
    def launch(self, stream: Stream) -> None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a device: name, capability (9, 0), processors (SMs), shared_bytes (largest dynamic shared memory of a
    block), driver and runtime: their CUDA versions as (13, 0); uuid: of the device, as nvidia-smi writes it"""

    name: str
    capability: tuple[int, int]
    processors: int
    shared_bytes: int
    driver: tuple[int, int]
    runtime: tuple[int, int]
    uuid: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """``rows`` × ``columns`` elements of ``array``, row by row, ``stride`` elements from row to row (the columns,
    unless it is part of a wider matrix), from element ``start`` on. ``transposed``: rows and columns are of the
    matrix in the product, and each of its columns is a row of memory."""

    array: Array
    rows: int
    columns: int
    stride: int
    start: int = 0
    transposed: bool = False


class Runtime(ABC):
    """One device. Every method may raise DeviceError with the failed action and a remedy.

    modules: number of sources (compiled anew, taken from the cache on disk)
    records: whether it can record; one that times each launch cannot

    The memory of an array without references may become another array at once, even if work on it is not done: a caller
    with several streams keeps it until then."""

    facts: Facts
    modules: tuple[int, int]
    records = True

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def empty(self, shape, dtype):
        """Return a new array. Refused during a recording."""

    @abstractmethod
    def whole(self, nbytes: int):
        """Return a uint8 array that is an allocation of its own (plain cudaMalloc): :meth:`share` can name it, and an
        MPI can take it."""

    @abstractmethod
    def view(self, array, dtype):
        """Return the same bytes as a flat array of another type."""

    @abstractmethod
    def pinned(self, nbytes: int):
        """Return a NumPy uint8 array in page-locked host memory."""

    @abstractmethod
    def address(self, array) -> int: ...

    @abstractmethod
    def tensor_map(self, array, boxes: Boxes | PixelBoxes) -> TensorMap:
        """Return the map by which a kernel copies boxes of an array of 2-byte elements. Cheap if it was made before."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Return (free, total) bytes of the device."""

    # ── copies ────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def upload(self, host, array, stream: Stream) -> None:
        """Copy from a C-contiguous NumPy array of the same bytes. A copy from pinned memory happens later, in the order
        of the stream, so that ``host`` must not change until then, and may be recorded; any other has read ``host`` on
        return."""

    @abstractmethod
    def download(self, array, host, stream: Stream) -> None:
        """Copy to a NumPy array; one that is not pinned is complete on return."""

    @abstractmethod
    def copy(self, source, target, stream: Stream) -> None:
        """Copy between arrays of equal bytes, on this device or mapped from a peer's."""

    @abstractmethod
    def clear(self, array, stream: Stream) -> None:
        """Set all bytes to zero."""

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def stream(self) -> Stream:
        """Return a new stream, which waits for no other."""

    @abstractmethod
    def compile(
        self, source: str, name: str, options: tuple[str, ...], architecture: str | None = None
    ) -> "dict[str, Kernel]":
        """Return the functions of a CUDA source by name. ``options``: -D and -I. Compiled for this device, or for the
        named architecture if it is one of few devices, or taken from the cache on disk. Raises DeviceError with the
        compiler's output."""

    @abstractmethod
    def record(self, stream: Stream) -> AbstractContextManager[list]:
        """Record the work issued on the stream inside the ``with``, without running it; the list then holds the graph.
        Work on another stream is recorded too after it waits for an event of this one; this stream must then wait for
        that one. Refused inside: allocation, a stream's first :meth:`product`, copies from or to unpinned memory,
        synchronisation, waits for earlier events."""

    @abstractmethod
    def product(self, a: Matrix, b: Matrix, c: Matrix, accumulate: bool, precise: bool, stream: Stream) -> None:
        """Compute c = a · b, or c += a · b, by cuBLAS. a and b are of one type; c of that or of float32; sums in
        float32, of float64 in float64. ``precise``: float32 without TF32. c is not transposed. The first product of a
        stream allocates; later ones can be recorded."""

    def timed(self, name: str, stream: Stream, arrays: Sequence, work: Callable[[], None]) -> None:
        """Run ``work()``, which issues work of another library on the stream, on these arrays. A runtime that profiles
        records it here."""
        work()

    # ── between processes ─────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def share(self, array) -> bytes:
        """Return the name of an array of :meth:`whole` for another process of this machine."""

    @abstractmethod
    def open(self, name: bytes, nbytes: int):
        """Return the array that another process named, as uint8. Once for each; not in the process that named it."""

    @abstractmethod
    def close(self, array) -> None:
        """Close an array of :meth:`open`, before its owner frees it."""
