"""Concatenation and splitting of arrays along their last axis."""

from ringtrain.ops.cuda.device import Device

# Bytes that a thread moves at a time: as many as divide every distance.
UNITS = {16: "uint4", 8: "uint2", 4: "unsigned int", 2: "unsigned short", 1: "unsigned char"}


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
