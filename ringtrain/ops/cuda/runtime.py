"""What ringtrain uses of CUDA: one device's memory, streams, events, kernels, graphs and products.

Streams are always named, never "current"; work on a stream is done in the order in which it was issued, and later. An
array is opaque, but for ``.shape``, ``.dtype``, ``.size``, contiguous slices ``x[a:b]`` of the leading axis and
``x.reshape(shape)``, which are views.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass


class Event(ABC):
    """A point in the work of a stream."""

    @abstractmethod
    def done(self) -> bool:
        """Whether the work before it is done."""

    @abstractmethod
    def wait(self) -> None:
        """Block this thread until it is."""

    @abstractmethod
    def seconds_since(self, earlier: "Event") -> float:
        """Device time between two events, both done, of :meth:`Stream.record` with ``timed``."""


class Stream(ABC):
    """``pointer``: what other libraries of CUDA know it by (a cudaStream_t); None where there is no device."""

    pointer: int | None = None

    @abstractmethod
    def record(self, timed: bool = False) -> Event:
        """An event after all that was issued so far."""

    @abstractmethod
    def after(self, event: Event) -> None:
        """What is issued from now on waits for the event."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block this thread until all that was issued is done. Raises DeviceError for a kernel's failure."""


class Kernel(ABC):
    """A function of a compiled module."""

    registers: int  # of a thread
    shared_bytes: int  # of a block, known when compiled

    @abstractmethod
    def launch(
        self, blocks: tuple[int, ...], threads: tuple[int, ...], stream: Stream, arguments: Sequence, shared_bytes: int
    ) -> None:
        """``arguments``: arrays (None is a null pointer) and NumPy scalars, which have the types of the function's
        parameters. ``shared_bytes``: dynamic shared memory, up to the device's :attr:`Facts.shared_bytes`."""


class CudaGraph(ABC):
    """Recorded work."""

    @abstractmethod
    def launch(self, stream: Stream) -> None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """name, capability (9, 0), processors (SMs), shared_bytes (dynamic, the most of a block), driver and runtime: their
    CUDA versions as (13, 0); uuid: of the device, as nvidia-smi writes it, to tell it from others"""

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
    unless it is part of a wider matrix), from element ``start`` on. ``transposed``: rows and columns are those of the
    matrix as it is multiplied, each of whose columns lies in a row of memory."""

    array: object
    rows: int
    columns: int
    stride: int
    start: int = 0
    transposed: bool = False


class Runtime(ABC):
    """One device. Every method may raise DeviceError, which says what failed and what to do.

    ``modules``: how many sources were (compiled anew, taken from the cache on disk). ``records``: whether it records at
    all; one that takes the time of each launch does not. An array that is given up while work on it is still to be done
    may become another at once: who has several streams keeps it until then.
    """

    facts: Facts
    modules: tuple[int, int]
    records = True

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def empty(self, shape, dtype):
        """A new array. Refused while anything is recorded."""

    @abstractmethod
    def whole(self, nbytes: int):
        """A uint8 array that is an allocation of its own (plain cudaMalloc): what :meth:`share` can name, and what may
        be handed to an MPI."""

    @abstractmethod
    def view(self, array, dtype):
        """The same bytes as a flat array of another type."""

    @abstractmethod
    def pinned(self, nbytes: int):
        """A NumPy uint8 array in page-locked host memory."""

    @abstractmethod
    def address(self, array) -> int: ...

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""

    # ── copies ────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def upload(self, host, array, stream: Stream) -> None:
        """From a C-contiguous NumPy array of the same bytes. Pinned: later, in the order of the stream, so that
        ``host`` must stay as it is until then; else it has been read on return. It may be recorded where it is
        pinned."""

    @abstractmethod
    def download(self, array, host, stream: Stream) -> None:
        """The reverse; what is not pinned has arrived on return."""

    @abstractmethod
    def copy(self, source, target, stream: Stream) -> None:
        """Between arrays of equal bytes, on this device or mapped from a peer's."""

    @abstractmethod
    def clear(self, array, stream: Stream) -> None:
        """All bytes zero."""

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def stream(self) -> Stream:
        """A new one, which waits for no other."""

    @abstractmethod
    def compile(self, source: str, name: str, options: tuple[str, ...]) -> "dict[str, Kernel]":
        """The functions of a CUDA source, by their names. ``options``: -D and -I. Compiled for this device, or taken
        from the cache on disk. Raises DeviceError with the compiler's words."""

    @abstractmethod
    def record(self, stream: Stream) -> AbstractContextManager[list]:
        """What is issued on the stream inside of the ``with`` is recorded and not done; the list then holds the Graph.
        So is what is issued on another stream after it waits for an event of this one; this one has then to wait for
        that. Refused inside: allocation, :meth:`product`, copies from or to unpinned memory, synchronisation, waiting
        for events from before."""

    @abstractmethod
    def product(self, a: Matrix, b: Matrix, c: Matrix, accumulate: bool, precise: bool, stream: Stream) -> None:
        """c = a · b, or c += a · b, by cuBLAS. a and b are of one type; c of that or of float32; sums in float32, of
        float64 in float64. ``precise``: float32 by no TF32. c is not transposed. Cannot be recorded."""

    def timed(self, name: str, stream: Stream, arrays: Sequence, work: Callable[[], None]) -> None:
        """``work()``, which issues something on the stream by another library, on these arrays. A runtime that
        profiles records it here."""
        work()

    # ── between processes ─────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def share(self, array) -> bytes:
        """What names an array of :meth:`whole` in another process of this machine."""

    @abstractmethod
    def open(self, name: bytes, nbytes: int):
        """The array that another process named, as uint8. Once for each; not in the process that named it."""

    @abstractmethod
    def close(self, array) -> None:
        """Give back what :meth:`open` gave, before its owner goes."""
