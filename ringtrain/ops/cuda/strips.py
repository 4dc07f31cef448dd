"""Concatenation and splitting of arrays along their last axis."""

# Bytes that a thread moves at a time: as many as divide every distance.
UNITS = {16: "uint4", 8: "uint2", 4: "unsigned int", 2: "unsigned short", 1: "unsigned char"}


class Strips:
    """The operations."""

    def __init__(self, device):
        self._device = device

    def concat(self, xs, y):
        self._move(xs, y, joining=True)

    def concat_back(self, dy, dxs):
        self._move(dxs, dy, joining=False)

    def _move(self, narrow, wide, joining):
        start, itemsize = 0, wide.dtype.itemsize
        flat, whole = self._device.runtime.view(wide, "uint8"), wide.shape[-1] * itemsize
        for x in narrow:
            width = x.shape[-1] * itemsize
            if x.size:
                part = flat[start:]
                arrays, strides = ((x, part), (width, whole)) if joining else ((part, x), (whole, width))
                self._copy(arrays, x.size // x.shape[-1], width, strides)
            start += width

    def _copy(self, arrays, rows, width, strides):
        """Launch the copies. ``width`` and ``strides`` are in bytes."""
        multiple = (*map(self._device.runtime.address, arrays), width, *strides)
        unit = next(unit for unit in UNITS if not any(each % unit for each in multiple))
        kernel = self._device.kernels.of(self._device.real)("strips", "copy_strips", UNIT=UNITS[unit])
        extents = rows, width // unit, strides[0] // unit, strides[1] // unit
        self._device.each(kernel, rows * width // unit, *arrays, *extents)
