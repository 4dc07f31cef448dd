"""What the operations share: the device, its kernels, the stream on which they are done, and scratch memory."""

import math
from contextlib import contextmanager

import numpy as np

from ringtrain.ops.cuda.choice import Choice
from ringtrain.ops.cuda.kernels import Kernels

THREADS = 256
BLOCKS_PER_PROCESSOR = 8  # of THREADS each: what a processor holds at once


class Device:
    """``real``: dtype of weights, gradients, statistics; ``active``: of activations and their gradients; ``precise``:
    whether products of float32 are made by float32, and not by TF32; ``choice``: among several ways to do the same;
    ``recording``: whether what is issued now is recorded, so that it must be able to be."""

    def __init__(self, runtime, real, active, precise=True, kernels=None, choice=None):
        self.runtime, self.precise = runtime, precise
        self.choice = Choice() if choice is None else choice
        self.recording = False
        self.real, self.active = np.dtype(real), np.dtype(active)
        self.kernels = Kernels(runtime, real, active) if kernels is None else kernels
        self.stream = runtime.stream()
        self._scratch = {}
        self._pinned = {}

    def numbers(self, factors=None) -> str:
        """The coarsest rounding in products of a type, that of activations where none is given: this type, or tf32."""
        name = (self.active if factors is None else factors).name
        return "tf32" if name == "float32" and not self.precise else name

    def beside(self) -> "Device":
        """The same device with a stream and scratch memory of its own."""
        return Device(self.runtime, self.real, self.active, self.precise, self.kernels, self.choice)

    @contextmanager
    def record(self):
        """What is issued inside is recorded; the list then holds the graph."""
        self.recording = True
        try:
            with self.runtime.record(self.stream) as graphs:
                yield graphs
        finally:
            self.recording = False

    def scratch(self, name: str, shape, dtype):
        """Memory kept under a name for the time of one operation; what was in it is lost when it is asked for again."""
        dtype = np.dtype(dtype)
        count = shape if isinstance(shape, int) else math.prod(shape)
        key = name, dtype.name
        kept = self._scratch.get(key)
        if kept is None or kept.size < count:
            if kept is not None:
                self.stream.synchronize()  # the smaller one may be at work still
            kept = self._scratch[key] = self.runtime.empty((max(1, count),), dtype)
        return kept[:count].reshape(shape)

    def pinned(self, name: str, count: int, dtype):
        """As :meth:`scratch`, of page-locked memory of the host."""
        dtype = np.dtype(dtype)
        kept = self._pinned.get(name)
        if kept is None or kept.size < count * dtype.itemsize:
            if kept is not None:
                self.stream.synchronize()
            kept = self._pinned[name] = self.runtime.pinned(max(1, count) * dtype.itemsize)
        return kept[: count * dtype.itemsize].view(dtype)

    def each(self, launch, count: int, *arguments, per_thread: int = 1):
        """Launch a kernel whose threads go over ``count`` elements, ``per_thread`` at a time; of none there is nothing
        to do."""
        if count:
            blocks = math.ceil(count / (THREADS * per_thread))
            most = self.runtime.facts.processors * BLOCKS_PER_PROCESSOR
            launch(min(blocks, most), THREADS, self.stream, *arguments)
