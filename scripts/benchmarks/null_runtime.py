"""A CUDA runtime that computes nothing: it counts the work that it gets, and takes CuPy's arrays on invented addresses.

What is left of an iteration is Python: that of ringtrain, and of CuPy up to the call of the driver. No device, and no
driver, is needed.
"""

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.boxes import TensorMap
from ringtrain.ops.cuda.checks import import_cupy
from ringtrain.ops.cuda.pinned import PinnedMemory
from ringtrain.ops.cuda.runtime import CudaGraph, Event, Facts, Kernel, Runtime, Stream
from ringtrain.ops.cuda.signatures import parse_signatures

FIRST_ADDRESS, ALIGNMENT = 1 << 40, 512
FREE_BYTES = 80 << 30


@dataclass(slots=True)
class Issued:
    """Work of an iteration: pieces and bytes of arrays by kernel, whether launched one by one or in a graph."""

    launches: int = 0  # one by one
    copies: int = 0
    graphs: int = 0
    nodes: int = 0  # of these graphs
    events: int = 0
    kernels: Counter = field(default_factory=Counter)
    nbytes: Counter = field(default_factory=Counter)


class NullEvent(Event):
    def done(self):
        return True

    def wait(self):
        pass

    def seconds_since(self, earlier):
        return 1e-6


class NullStream(Stream):
    def __init__(self, runtime):
        self._runtime = runtime

    def record(self, timed=False):
        self._runtime.issued.events += 1
        return NullEvent()

    def after(self, event):
        self._runtime.issued.events += 1

    def synchronize(self):
        pass


class NullKernel(Kernel):
    registers = shared_bytes = 0

    def __init__(self, runtime, name):
        self._runtime, self._name = runtime, name

    def launch(self, blocks, threads, stream, arguments, shared_bytes):
        given = (each.array if isinstance(each, TensorMap) else each for each in arguments)
        arrays = [each for each in given if not isinstance(each, np.generic | type(None))]
        self._runtime.issue(self._name, sum(each.size * each.dtype.itemsize for each in arrays))


class NullGraph(CudaGraph):
    def __init__(self, runtime, work):
        self._runtime, self.work = runtime, work
        self._nodes, self._kernels, self._nbytes = len(work), Counter(name for name, _ in work), Counter()
        for name, nbytes in work:
            self._nbytes[name] += nbytes

    def launch(self, stream):
        issued = self._runtime.issued
        issued.graphs += 1
        issued.nodes += self._nodes
        issued.kernels.update(self._kernels)
        issued.nbytes.update(self._nbytes)


class NullRuntime(Runtime):
    """``issued``: the work since the last :meth:`take`."""

    def __init__(self):
        self._cupy = import_cupy()
        self.facts = Facts("none", (9, 0), 132, 227 << 10, (13, 0), (13, 0), "none")
        self.modules = 0, 0
        self.issued = Issued()
        self._recording: list | None = None
        self._next, self._pinned = FIRST_ADDRESS, PinnedMemory()

    def issue(self, name: str, nbytes: int) -> None:
        if self._recording is not None:
            self._recording.append((name, nbytes))
            return
        self.issued.kernels[name] += 1
        self.issued.nbytes[name] += nbytes
        if name in ("upload", "download", "copy", "clear"):
            self.issued.copies += 1
        else:
            self.issued.launches += 1

    def take(self) -> Issued:
        """Return the work since the last call."""
        found, self.issued = self.issued, Issued()
        return found

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def empty(self, shape, dtype):
        if self._recording is not None:
            raise DeviceError("an array was allocated while work is recorded")
        dtype = np.dtype(dtype)
        return self._at(shape, dtype, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)

    def _at(self, shape, dtype, nbytes):
        memory = self._cupy.cuda.UnownedMemory(self._next, max(1, nbytes), self, 0)
        self._next += -(-max(1, nbytes) // ALIGNMENT) * ALIGNMENT
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def whole(self, nbytes):
        return self._at((nbytes,), np.dtype(np.uint8), nbytes)

    def view(self, array, dtype):
        dtype = np.dtype(dtype)
        return self._cupy.ndarray((array.size * array.dtype.itemsize // dtype.itemsize,), dtype, array.data)

    def pinned(self, nbytes):
        memory = np.zeros(max(1, nbytes), np.uint8)
        self._pinned.add(memory)
        return memory[:nbytes]

    def address(self, array):
        return array.data.ptr

    def tensor_map(self, array, boxes):
        return TensorMap(None, array)

    def memory(self):
        return FREE_BYTES, FREE_BYTES

    # ── copies ────────────────────────────────────────────────────────────────────────────────────────────────
    def upload(self, host, array, stream):
        self._pinned.holds(host)
        self.issue("upload", host.nbytes)

    def download(self, array, host, stream):
        if self._recording is None:
            host.fill(0)
        self.issue("download", host.nbytes)

    def copy(self, source, target, stream):
        self.issue("copy", 2 * source.size * source.dtype.itemsize)

    def clear(self, array, stream):
        self.issue("clear", array.size * array.dtype.itemsize)

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────
    def stream(self):
        return NullStream(self)

    def compile(self, source, name, options, architecture=None):
        types = dict(option[2:].split("=", 1) for option in options if option.startswith("-D"))
        return {
            each: NullKernel(self, f"{name.removesuffix('.cu')}: {each}") for each in parse_signatures(source, types)
        }

    @contextmanager
    def record(self, stream):
        graphs: list = []
        self._recording = []
        try:
            yield graphs
        finally:
            work, self._recording = self._recording, None
        graphs.append(NullGraph(self, work))

    def product(self, a, b, c, accumulate, precise, stream):
        self.issue("cuBLAS", sum(each.array.size * each.array.dtype.itemsize for each in (a, b, c)))

    # ── between processes ─────────────────────────────────────────────────────────────────────────────────────
    def share(self, array):
        raise DeviceError("no device")

    def open(self, name, nbytes):
        raise DeviceError("no device")

    def close(self, array):
        raise DeviceError("no device")
