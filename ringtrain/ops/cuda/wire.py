"""Packing to 16 bits for messages."""

import numpy as np


class Wire:
    """The operations."""

    def __init__(self, device):
        self._device = device

    def pack(self, x, packed):
        self._each(f"pack_{_kind(packed)}", x.size, x, packed, x.size)

    def unpack(self, packed, x, accumulate=False):
        self._each(f"unpack_{_kind(packed)}", x.size, packed, x, x.size, accumulate)

    def _each(self, name, count, *arguments):
        kernel = self._device.kernels.of(np.float32)("wire", name)
        self._device.each(kernel, count, *arguments, per_thread=4)


def _kind(packed):
    return "half" if packed.dtype == np.float16 else "bfloat16"
