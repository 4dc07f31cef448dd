"""Packing to 16 bits for messages."""

import numpy as np

from ringtrain.ops.cuda.device import Device


def pack(device: Device, x, packed):
    _each(device, f"pack_{_kind(packed)}", x.size, x, packed, x.size)


def unpack(device: Device, packed, x, accumulate=False):
    _each(device, f"unpack_{_kind(packed)}", x.size, packed, x, x.size, accumulate)


def _each(device: Device, name, count, *arguments):
    kernel = device.kernels.of(np.float32)("wire", name)
    device.each(kernel, count, *arguments, per_thread=4)


def _kind(packed):
    return "half" if packed.dtype == np.float16 else "bfloat16"
