"""Elementwise operations, of any floating-point type, the same for all arrays of an operation; joins along the last
axis."""

import numpy as np

from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.signatures import C_TYPES

# Bytes that a thread moves at a time: as many as divide every distance.
UNITS = {16: "uint4", 8: "uint2", 4: "unsigned int", 2: "unsigned short", 1: "unsigned char"}


def fill(device: Device, x, value):
    bits = np.asarray(value).astype(x.dtype).tobytes()
    if not any(bits):
        device.runtime.clear(x, device.stream)
        return
    repeated = int.from_bytes((bits * 8)[:8], "little")
    nbytes = x.size * x.dtype.itemsize
    device.each(device.kernels.of(device.real)("fill", "fill"), nbytes, x, nbytes, repeated, per_thread=16)


def copy(device: Device, x, y):
    if x.dtype == y.dtype:
        device.runtime.copy(x, y, device.stream)
        return
    wider = "float64" if "float64" in (x.dtype.name, y.dtype.name) else "float32"
    types = {"FROM": C_TYPES[x.dtype.name], "TO": C_TYPES[y.dtype.name]}
    _each(device, device.kernels.of(wider)("cast", "cast", **types), x, x, y, x.size)


def add(device: Device, a, b, y, relu=False):
    _each(device, _kernel(device, "add", y), y, a, b, y, y.size, relu)


def scale(device: Device, x, factor):
    factors = (factor, None) if isinstance(factor, int | float | np.number) else (1.0, factor)
    _each(device, _kernel(device, "scale", x), x, x, x.size, *factors)


def relu(device: Device, x, y):
    _each(device, _kernel(device, "relu", x), x, x, y, x.size)


def relu_back(device: Device, y, dy, dx):
    _each(device, _kernel(device, "relu_back", y), y, y, dy, dx, y.size)


def _kernel(device: Device, name, x):
    return device.kernels.of(x.dtype)("elementwise", name)


def _each(device: Device, kernel, x, *arguments):
    device.each(kernel, x.size, *arguments, per_thread=16 // x.dtype.itemsize)


def concat(device: Device, xs, y):
    _move(device, xs, y, joining=True)


def concat_back(device: Device, dy, dxs):
    _move(device, dxs, dy, joining=False)


def _move(device: Device, narrow, wide, joining):
    start, itemsize = 0, wide.dtype.itemsize
    flat, whole = device.runtime.view(wide, "uint8"), wide.shape[-1] * itemsize
    for x in narrow:
        width = x.shape[-1] * itemsize
        if x.size:
            part = flat[start:]
            arrays, strides = ((x, part), (width, whole)) if joining else ((part, x), (whole, width))
            _copy(device, arrays, x.size // x.shape[-1], width, strides)
        start += width


def _copy(device: Device, arrays, rows, width, strides):
    """Launch the copies. ``width`` and ``strides`` are in bytes."""
    multiple = (*map(device.runtime.address, arrays), width, *strides)
    unit = next(unit for unit in UNITS if not any(each % unit for each in multiple))
    kernel = device.kernels.of(device.real)("strips", "copy_strips", UNIT=UNITS[unit])
    extents = rows, width // unit, strides[0] // unit, strides[1] // unit
    device.each(kernel, rows * width // unit, *arrays, *extents)
