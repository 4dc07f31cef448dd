"""The operations on an NVIDIA GPU, on kernels of ringtrain's own and cuBLAS.

All use of CUDA goes through a :class:`~ringtrain.ops.cuda.cupy_runtime.CupyRuntime`, which is passed in. Nothing here
looks for a device, or imports CuPy."""

import functools
import math

import numpy as np

from ringtrain.ops.base import Ops, methods_of
from ringtrain.ops.cuda import (
    activations,
    elementwise,
    examples,
    exchange,
    loss,
    norm,
    pool,
    products,
    sequences,
    update,
    windows,
)
from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.convolution import CudaConvolution
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.segments import Segments

MOST_PUT = 4  # numbers that one kernel sets
PARTS = activations, elementwise, examples, exchange, loss, norm, pool, products, sequences, update, windows


def on_device(operation):
    """Return the method of an operation, a function with a :class:`Device` before its own parameters."""

    @functools.wraps(operation)
    def method(self, *args, **kwargs):
        return operation(self._device, *args, **kwargs)

    return method


class CudaOps(Ops):
    """The operations on one device. One object serves one thread of the program at a time, on a stream of its own.
    ``fixed``: variants are chosen by size alone, never by a timing: ringtrain's own kernels."""

    name = "cuda"
    vars().update(methods_of(Ops, PARTS, on_device))
    fused = True
    columns_at_once = 1 << 24  # enough work for a large device
    records = True

    def __init__(self, runtime, dtype="float32", precision="float32", device=None, fixed=False):
        super().__init__(dtype, precision)
        self.runtime, choice = runtime, Choice(fixed)
        self._device = device or Device(runtime, self.dtype, self.active, precision != "tf32", choice=choice)
        self._segments = Segments(self._device)
        self._convolution = CudaConvolution(self._device)

    # ── the machine ───────────────────────────────────────────────────────────────────────────────────────────
    def describe(self):
        facts = self.runtime.facts
        driver, cuda = (".".join(map(str, version)) for version in (facts.driver, facts.runtime))
        device = f"{facts.name}, {self.precision}, CUDA {cuda} (driver {driver})"
        segments = self._segments.describe()
        return f"{device}; {segments}" if segments else device

    def numerics(self):
        facts = self.runtime.facts
        return f"{facts.name}, CUDA {'.'.join(map(str, facts.runtime))}"

    @property
    def choices(self):
        """The choice, whose ``table`` has the chosen variant of each product and convolution so far, with its time."""
        return self._device.choice

    def notes(self):
        return self.choices.notes

    def compile_stats(self):
        return self.runtime.modules

    def threads(self, count):
        """Do nothing: a device has its own threads."""

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def empty(self, shape, dtype=None):
        return self.runtime.empty(shape, self.dtype if dtype is None else np.dtype(dtype))

    def address(self, x):
        return self.runtime.address(x)

    def pinned(self, shape, dtype):
        dtype, count = np.dtype(dtype), math.prod((shape,) if isinstance(shape, int) else shape)
        return self.runtime.pinned(count * dtype.itemsize).view(dtype).reshape(shape)

    def upload(self, host, out):
        if host.dtype != out.dtype or not host.flags.c_contiguous:
            host = np.ascontiguousarray(host, out.dtype)
        self.runtime.upload(host, out, self._device.stream)

    def to_host(self, x):
        host = np.empty(x.shape, x.dtype)
        self.runtime.download(x, host, self._device.stream)
        return host

    def download(self, x, host):
        if host.dtype == x.dtype and host.flags.c_contiguous:
            self.runtime.download(x, host, self._device.stream)
            self.synchronize()
        else:
            np.copyto(host, self.to_host(x))

    def fetch(self, x, host):
        self.runtime.download(x, host, self._device.stream)

    def put(self, *values):
        pairs = [part for x, value in values for part in (x, int(np.asarray(value).astype(x.dtype).view(np.uint64)))]
        kernel = self._device.kernels("numbers", "put")
        kernel(1, 1, self._device.stream, *pairs, *[None, 0] * (MOST_PUT - len(values)))

    def typed(self, x, dtype):
        return self.runtime.view(x, dtype)

    def memory(self):
        return self.runtime.memory()

    # ── convolution, which keeps plans of the library ─────────────────────────────────────────────────────────
    def conv2d(self, *arrays, **options):
        return self._convolution.conv2d(*arrays, **options)

    def conv2d_back(self, *arrays, **options):
        self._convolution.conv2d_back(*arrays, **options)

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────
    def synchronize(self):
        self._device.stream.synchronize()

    def segment(self, key, run):
        return self._segments(key, run)

    def mark(self, timed=False):
        return self._device.stream.record(timed)

    def after(self, mark):
        self._device.stream.after(mark)

    def beside(self):
        return type(self)(self.runtime, self.dtype, self.precision, self._device.beside())
