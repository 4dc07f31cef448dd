"""Pooling: ``sources/pool.cu``."""

import math

from ringtrain.ops.cuda.channels import cut_columns, vector_of
from ringtrain.ops.cuda.device import Device


def max_pool(device: Device, x_NHWC, y_NPQC, where_NPQC, geometry):
    _windows(device, "max_pool", x_NHWC, y_NPQC, geometry, y_NPQC, x_NHWC, y_NPQC, where_NPQC)


def max_pool_back(device: Device, dy_NPQC, where_NPQC, dx_NHWC, geometry):
    _windows(device, "max_pool_back", dx_NHWC, dy_NPQC, geometry, dx_NHWC, dy_NPQC, where_NPQC, dx_NHWC)


def avg_pool(device: Device, x_NHWC, y_NPQC, geometry):
    _windows(device, "avg_pool", x_NHWC, y_NPQC, geometry, y_NPQC, x_NHWC, y_NPQC)


def avg_pool_back(device: Device, dy_NPQC, dx_NHWC, geometry):
    _windows(device, "avg_pool_back", dx_NHWC, dy_NPQC, geometry, dx_NHWC, dy_NPQC, dx_NHWC)


def global_avg_pool(device: Device, x_NHWC, y_NC):
    n, pixels, channels = _lines(x_NHWC)
    if not y_NC.size:
        return
    vector = vector_of(device.runtime, channels, x_NHWC, y_NC)
    columns = cut_columns(pixels, pixels, channels, vector)
    blocks = n, columns.blocks[1]
    kernel = device.kernels("pool", "global_avg_pool")
    kernel(blocks, columns.threads, device.stream, x_NHWC, y_NC, pixels, channels, columns.wide)


def global_avg_pool_back(device: Device, dy_NC, dx_NHWC):
    extents = _lines(dx_NHWC)
    vector = vector_of(device.runtime, extents[-1], dy_NC, dx_NHWC)
    _each(device, "global_avg_pool_back", vector, dx_NHWC, dy_NC, dx_NHWC, *extents)


def _windows(device: Device, function, x_NHWC, y_NPQC, geometry, output, *arrays):
    """Launch a kernel with a thread for each element of ``output``, which is x or y."""
    (n, height, width, channels), (p, q) = x_NHWC.shape, y_NPQC.shape[1:3]
    extents = n, height, width, channels, p, q, geometry.kernel, geometry.stride, geometry.pad
    vector = vector_of(device.runtime, channels, *arrays)
    _each(device, function, vector, output, *arrays, *extents)


def _each(device: Device, function, vector, output, *arguments):
    kernel = device.kernels("pool", function)
    device.each(kernel, output.size, *arguments, int(vector > 1), per_thread=vector)


def _lines(x):
    """Return (examples, pixels of an example, channels)."""
    return x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1]
