"""Exchanges of gradients: sums over the memory of several ranks, 16 bits for messages, the largest elements, factors of
low rank, levels of few bits. ``sources/exchange.cu``, ``wire.cu``, ``compression.cu``, ``orthonormal.cu`` and
``levels.cu``."""

import numpy as np

from ringtrain.ops.cuda.device import Device
from ringtrain.ops.levels import BLOCK as LEVEL_BLOCK
from ringtrain.ops.levels import packed_bytes, scale_count
from ringtrain.ops.pairs import INDEX, pair_count

MOST = 8
BITS, BINS = 11, 1 << 11  # counted at once
BLOCK, EACH, WARP = 512, 4, 32
MOST_BLOCKS, BLOCKS_PER_PROCESSOR = 1024, 4
ORTHONORMAL_BLOCK = 1024


def add_all(device: Device, sources, targets):
    """Types of 16 bits are added in float32 and rounded once.

    Raises: ValueError for no source or target, or more than 8 of either."""
    for name, arrays in (("sources", sources), ("targets", targets)):
        if not 1 <= len(arrays) <= MOST:
            raise ValueError(f"add_all got {len(arrays)} {name}; it takes 1 to {MOST}")
    count, dtype = sources[0].size, sources[0].dtype
    kernel = device.kernels.of(dtype)("exchange", "add_all")
    arguments = *_filled(sources), *_filled(targets), len(sources), len(targets), count
    device.each(kernel, count, *arguments, per_thread=16 // dtype.itemsize)


def _filled(arrays):
    """Return as many arrays as the kernel has parameters; the rest are null."""
    return *arrays, *[None] * (MOST - len(arrays))


def pack(device: Device, x, packed):
    _pack(device, f"pack_{_kind(packed)}", x.size, x, packed, x.size)


def unpack(device: Device, packed, x, accumulate=False):
    _pack(device, f"unpack_{_kind(packed)}", x.size, packed, x, x.size, accumulate)


def _pack(device: Device, name, count, *arguments):
    kernel = device.kernels.of(np.float32)("wire", name)
    device.each(kernel, count, *arguments, per_thread=4)


def _kind(packed):
    return "half" if packed.dtype == np.float16 else "bfloat16"


def take_largest(device: Device, x, pairs, k, chunk=0):
    if k == 0:
        return
    if chunk:
        halves = _halves(device, pairs, pair_count(x.size, k, chunk))
        _launch(device, "take_from_chunks", min(-(-x.size // chunk), MOST_BLOCKS), x, x.size, k, chunk, *halves)
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


def take_levels(device: Device, x, levels, bits):
    if x.size:
        blocks, kernel = -(-x.size // LEVEL_BLOCK), device.kernels("levels", "take_levels")
        arguments = x, *_levels(device, levels, x.size, bits), x.size, bits
        kernel(min(blocks, device.most_blocks), LEVEL_BLOCK, device.stream, *arguments)


def add_levels(device: Device, levels, y, bits):
    kernel = device.kernels("levels", "add_levels")
    device.each(kernel, y.size, *_levels(device, levels, y.size, bits), y, y.size, bits)


def pack_bits(device: Device, x, packed, width):
    device.each(device.kernels("levels", "pack_bits"), x.size, x, packed, x.size, width, per_thread=8)


def unpack_bits(device: Device, packed, x, width, k):
    device.each(device.kernels("levels", "unpack_bits"), x.size, packed, x, x.size, width, k)


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
    on the number of blocks."""
    most = min(MOST_BLOCKS, device.runtime.facts.processors * BLOCKS_PER_PROCESSOR)
    tiles = -(-count // (BLOCK * EACH))
    part = -(-tiles // most) * BLOCK * EACH
    return -(-count // part), part


def _halves(device: Device, pairs, k):
    """Return the values and indices of the pairs: see :mod:`ringtrain.ops.pairs`."""
    runtime, middle = device.runtime, k * device.real.itemsize
    values = runtime.view(pairs[:middle], device.real)
    return values, runtime.view(pairs[middle : middle + k * INDEX.itemsize], INDEX)


def _levels(device: Device, levels, count, bits):
    """Return the scales and codes of levels: see :mod:`ringtrain.ops.levels`."""
    middle = scale_count(count, bits) * device.real.itemsize
    return device.runtime.view(levels[:middle], device.real), levels[middle : middle + packed_bytes(count, bits)]


def _launch(device: Device, function, blocks, *arguments, threads=BLOCK):
    device.kernels("compression", function)(blocks, threads, device.stream, *arguments)
