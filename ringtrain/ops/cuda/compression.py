"""The largest elements, and factors of low rank: ``sources/compression.cu`` and ``sources/orthonormal.cu``."""

import numpy as np

from ringtrain.ops.cuda.device import Device
from ringtrain.ops.pairs import INDEX

BITS, BINS = 11, 1 << 11  # counted at once
BLOCK, EACH, WARP = 512, 4, 32
MOST_BLOCKS, BLOCKS_PER_PROCESSOR = 1024, 4
ORTHONORMAL_BLOCK = 1024


def take_largest(device: Device, x, pairs, k):
    if k == 0:
        return
    threshold = _find(device, x, k)
    blocks, part = _parts(device, x.size)
    sizes = device.scratch("taken", (2, blocks), "int32")
    arguments = x, x.size, part, threshold, sizes
    _launch(device, "tally", blocks, *arguments)
    _launch(device, "move", blocks, *arguments, *_halves(device, pairs, k))


def add_pairs(device: Device, pairs, y, k):
    kernel = device.kernels("compression", "add_pairs")
    values, indices = _halves(device, pairs, k)
    device.each(kernel, k, values, indices, y, k)


def orthonormalise(device: Device, x_MR):
    rows, columns = x_MR.shape
    if x_MR.size:
        threads = min(ORTHONORMAL_BLOCK, -(-rows // WARP) * WARP)
        kernel = device.kernels("orthonormal", "orthonormalise")
        kernel(1, threads, device.stream, x_MR, rows, columns, float(np.finfo(x_MR.dtype).eps))


def _find(device: Device, x, k):
    """Return (magnitude of the k-th largest, number of its equals to take), on the device."""
    threshold, counts = device.scratch("found", 2, "uint64"), device.scratch("counts", BINS, "uint32")
    _launch(device, "begin", 1, counts, threshold, k)
    blocks, _ = _parts(device, x.size)
    shift = 8 * x.dtype.itemsize - 1
    while shift > 0:
        step = min(shift, BITS)
        shift -= step
        _launch(device, "count_bits", blocks, x, x.size, threshold, counts, shift, step)
        _launch(device, "choose", 1, counts, threshold, step, threads=BLOCK // 2)
    return threshold


def _parts(device: Device, count):
    """Return (number of blocks, elements of each block). Integers are counted, so that the result does not depend
    on the number of blocks.
    """
    most = min(MOST_BLOCKS, device.runtime.facts.processors * BLOCKS_PER_PROCESSOR)
    tiles = -(-count // (BLOCK * EACH))
    part = -(-tiles // most) * BLOCK * EACH
    return -(-count // part), part


def _halves(device: Device, pairs, k):
    """Return the values and indices of the pairs: see :mod:`ringtrain.ops.pairs`."""
    runtime, middle = device.runtime, k * device.real.itemsize
    values = runtime.view(pairs[:middle], device.real)
    return values, runtime.view(pairs[middle : middle + k * INDEX.itemsize], INDEX)


def _launch(device: Device, function, blocks, *arguments, threads=BLOCK):
    device.kernels("compression", function)(blocks, threads, device.stream, *arguments)
