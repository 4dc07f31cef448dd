"""The state that operations share: the device, its kernels, their stream, and scratch memory."""

import math
from contextlib import contextmanager
from functools import partial

import numpy as np

from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.kernels import Kernels

THREADS = 256
BLOCKS_PER_PROCESSOR = 8  # of THREADS each: a processor holds so many at once
TICKETS = 1 << 14  # at first: few kernels want more
WARP, FEW = 32, 4  # of a block for a row: the fewest threads, and elements of a thread at the least


def row_threads(elements: int) -> int:
    """Return the threads of a block that goes over a row of so many elements."""
    threads = WARP
    while threads < THREADS and threads * FEW < elements:
        threads *= 2
    return threads


class Device:
    """The shared state.

    real:      dtype of weights, gradients, statistics
    active:    dtype of activations and their gradients
    precise:   whether products of float32 use float32, and not TF32
    choice:    the choice among several variants of the same work
    recording: whether work issued now is recorded"""

    def __init__(self, runtime, real, active, precise=True, kernels=None, choice=None):
        self.runtime, self.precise = runtime, precise
        self.choice = Choice() if choice is None else choice
        self.recording = False
        self.real, self.active = np.dtype(real), np.dtype(active)
        self.kernels = Kernels(runtime, real, active) if kernels is None else kernels
        self.stream = runtime.stream()
        self.tables = {}  # an update's tables on the device, by the id() of their key
        self._scratch = {}
        self._pinned = {}
        self._tickets = None

    @property
    def most_blocks(self) -> int:
        """How many blocks of :data:`THREADS` the device holds at once."""
        return self.runtime.facts.processors * BLOCKS_PER_PROCESSOR

    def tickets(self, count: int):
        """Return counters of 0, uint32, by which kernels find their last block; each kernel leaves them at 0."""
        if self._tickets is None or self._tickets.size < count:
            if self._tickets is not None:
                self.stream.synchronize()  # the fewer ones may be at work still
            self._tickets = self.runtime.empty((max(count, TICKETS),), "uint32")
            self.runtime.clear(self._tickets, self.stream)
        return self._tickets

    def numbers(self, factors=None) -> str:
        """Return the coarsest rounding in products of a type, by default of activations: this type, or tf32."""
        name = (self.active if factors is None else factors).name
        return "tf32" if name == "float32" and not self.precise else name

    def beside(self) -> "Device":
        """Return the same device with a stream and scratch memory of its own."""
        return Device(self.runtime, self.real, self.active, self.precise, self.kernels, self.choice)

    @contextmanager
    def record(self):
        """Record the work issued inside; the list then holds the graph."""
        self.recording = True
        try:
            with self.runtime.record(self.stream) as graphs:
                yield graphs
        finally:
            self.recording = False

    def scratch(self, name: str, shape, dtype):
        """Return memory kept under a name for the time of one operation; the next request for the name overwrites
        it."""
        dtype, count = np.dtype(dtype), shape if isinstance(shape, int) else math.prod(shape)
        make = partial(self.runtime.empty, (max(1, count),), dtype)
        return self._kept(self._scratch, (name, dtype.name), count, make)[:count].reshape(shape)

    def pinned(self, name: str, count: int, dtype):
        """As :meth:`scratch`, of page-locked memory of the host."""
        dtype = np.dtype(dtype)
        nbytes = count * dtype.itemsize
        make = partial(self.runtime.pinned, max(dtype.itemsize, nbytes))
        return self._kept(self._pinned, name, nbytes, make)[:nbytes].view(dtype)

    def _kept(self, kept: dict, key, size: int, make):
        """Return what is kept under a key; what ``make()`` returns, if that is smaller than ``size``."""
        if key not in kept or kept[key].size < size:
            if key in kept:
                self.stream.synchronize()  # the smaller one may be at work still
            kept[key] = make()
        return kept[key]

    def each(self, launch, count: int, *arguments, per_thread: int = 1):
        """Launch a kernel whose threads go over ``count`` elements, ``per_thread`` at a time; nothing for 0
        elements."""
        if count:
            blocks = math.ceil(count / (THREADS * per_thread))
            launch(min(blocks, self.most_blocks), THREADS, self.stream, *arguments)
