"""Reductions of all elements to a number on the host."""

import numpy as np

from ringtrain.ops.cuda.device import THREADS, Device

MOST_PARTS = 512  # of any device, so that the order of a sum is the same on all
PER_THREAD = 8


def square_sum(device: Device, x):
    return float(_sum(device, "square_parts", x))


def nonfinite(device: Device, x):
    return int(_sum(device, "nonfinite_parts", x))


def _sum(device: Device, name, x):
    if not x.size:
        return 0
    kernels = device.kernels.of(x.dtype)
    parts = min(MOST_PARTS, -(-x.size // (THREADS * PER_THREAD)))
    memory, host = device.scratch("sums", MOST_PARTS + 1, np.float64), device.pinned("total", 1, np.float64)
    kernels("sums", name)(parts, THREADS, device.stream, x, x.size, memory)
    kernels("sums", "sum_parts")(1, THREADS, device.stream, memory, parts, memory[MOST_PARTS:])
    device.runtime.download(memory[MOST_PARTS:], host, device.stream)
    device.stream.synchronize()
    return host[0]
