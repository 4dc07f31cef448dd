"""Maps by which the host's kernels copy boxes: the struct TensorMap of cuda_shim_wgmma.h.

What the driver refuses to encode, this refuses: cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col, CUDA Driver API.
"""

import numpy as np

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.boxes import Boxes, PixelBoxes

LAYOUT = np.dtype(
    {
        "names": ["address", "strides", "pixels", "extents", "box", "lower", "upper", "step"],
        "formats": ["u8", ("i8", 3), "i4", ("i4", 4), ("i4", 3), ("i4", 2), ("i4", 2), ("i4", 2)],
        "offsets": [0, 8, 32, 36, 52, 64, 72, 80],
        "itemsize": 128,
    }
)
WIDE, LINE_BYTES = 16, 128


def encode(memory: np.ndarray, boxes: Boxes | PixelBoxes) -> np.void:
    """The map of an array in this memory. Raises: DeviceError for what the driver refuses, or beyond the array."""
    strides = [stride * memory.itemsize for stride in boxes.strides]
    _check_array(memory, boxes.extents, strides)
    map = np.zeros((), LAYOUT)
    map["address"], map["strides"][: len(strides)] = memory.ctypes.data, strides
    map["extents"][: len(boxes.extents)] = boxes.extents
    if isinstance(boxes, PixelBoxes):
        _check_pixels(boxes, memory.itemsize)
        map["pixels"], map["box"][:2] = 1, (boxes.channels, boxes.pixels)
        map["lower"], map["upper"], map["step"] = boxes.lower, boxes.upper, (boxes.step, boxes.step)
    else:
        line = boxes.box[0] * memory.itemsize
        _refuse_unless(all(0 < extent <= 256 for extent in boxes.box), f"a box of {boxes.box}")
        _refuse_unless(line == LINE_BYTES, f"lines of {line} bytes, swizzled by 128")
        map["box"] = boxes.box
    return map[()]


def _refuse_unless(allowed, what):
    if not allowed:
        raise DeviceError(f"a map that the driver refuses to encode: {what}")


def _check_array(memory, extents, strides):
    _refuse_unless(memory.ctypes.data % WIDE == 0, "the address is not a multiple of 16")
    _refuse_unless(all(0 < stride < 1 << 40 and stride % WIDE == 0 for stride in strides), f"strides {strides}")
    _refuse_unless(all(0 < extent <= 1 << 32 for extent in extents), f"extents {extents}")
    last = sum((extent - 1) * stride for extent, stride in zip(extents[1:], strides, strict=True))
    if last + extents[0] * memory.itemsize > memory.nbytes:
        raise DeviceError(f"a map of {extents} elements, {strides} bytes apart, on an array of {memory.nbytes} bytes")


def _check_pixels(boxes, itemsize):
    _refuse_unless(0 < boxes.channels <= 256 and 0 < boxes.pixels <= 1024, f"{boxes.channels} of {boxes.pixels} pixels")
    _refuse_unless(boxes.channels * itemsize == LINE_BYTES, f"{boxes.channels} channels, swizzled by 128 bytes")
    _refuse_unless(all(-128 <= corner <= 127 for corner in (*boxes.lower, *boxes.upper)), f"corners {boxes}")
    _refuse_unless(1 <= boxes.step <= 8, f"a stride of {boxes.step}")
    for extent, lower, upper in zip(boxes.extents[1:3], boxes.lower, boxes.upper, strict=True):
        _refuse_unless(extent - 1 + upper >= lower, f"an empty box of pixels: {boxes}")
