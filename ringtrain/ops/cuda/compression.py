"""The largest elements, and factors of low rank: ``sources/compression.cu`` and ``sources/orthonormal.cu``."""

import numpy as np

from ringtrain.ops.cuda.device import Device
from ringtrain.ops.pairs import INDEX

BITS, BINS = 11, 1 << 11  # counted at once
BLOCK, EACH, WARP = 512, 4, 32
MOST_BLOCKS, BLOCKS_PER_PROCESSOR = 1024, 4
ORTHONORMAL_BLOCK = 1024


class Compression:
    """The operations of compressed gradients."""

    def __init__(self, device: Device):
        self._device = device

    def take_largest(self, x, pairs, k):
        if k == 0:
            return
        found = self._find(x, k)
        blocks, part = self._parts(x.size)
        sizes = self._device.scratch("taken", (2, blocks), "int32")
        given = x, x.size, part, found, sizes
        self._launch("tally", blocks, *given)
        self._launch("move", blocks, *given, *self._halves(pairs, k))

    def add_pairs(self, pairs, y, k):
        kernel = self._device.kernels("compression", "add_pairs")
        values, indices = self._halves(pairs, k)
        self._device.each(kernel, k, values, indices, y, k)

    def orthonormalise(self, x_MR):
        rows, columns = x_MR.shape
        if x_MR.size:
            threads = min(ORTHONORMAL_BLOCK, -(-rows // WARP) * WARP)
            kernel = self._device.kernels("orthonormal", "orthonormalise")
            kernel(1, threads, self._device.stream, x_MR, rows, columns, float(np.finfo(x_MR.dtype).eps))

    def _find(self, x, k):
        """Return (magnitude of the k-th largest, number of its equals to take), on the device."""
        found, counts = self._device.scratch("found", 2, "uint64"), self._device.scratch("counts", BINS, "uint32")
        self._launch("begin", 1, counts, found, k)
        blocks, _ = self._parts(x.size)
        shift = 8 * x.dtype.itemsize - 1
        while shift > 0:
            step = min(shift, BITS)
            shift -= step
            self._launch("count_bits", blocks, x, x.size, found, counts, shift, step)
            self._launch("choose", 1, counts, found, step, threads=BLOCK // 2)
        return found

    def _parts(self, count):
        """Return (number of blocks, elements of each block). Integers are counted, so that the result does not depend
        on the number of blocks.
        """
        most = min(MOST_BLOCKS, self._device.runtime.facts.processors * BLOCKS_PER_PROCESSOR)
        tiles = -(-count // (BLOCK * EACH))
        part = -(-tiles // most) * BLOCK * EACH
        return -(-count // part), part

    def _halves(self, pairs, k):
        """Return the values and indices of the pairs: see :mod:`ringtrain.ops.pairs`."""
        runtime, middle = self._device.runtime, k * self._device.real.itemsize
        values = runtime.view(pairs[:middle], self._device.real)
        return values, runtime.view(pairs[middle : middle + k * INDEX.itemsize], INDEX)

    def _launch(self, function, blocks, *arguments, threads=BLOCK):
        self._device.kernels("compression", function)(blocks, threads, self._device.stream, *arguments)
