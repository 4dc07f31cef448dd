"""Calls of the driver through ctypes: a device's UUID, as nvidia-smi and the files under /proc write it, and maps of
arrays for the TMA unit, by cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col.

Source: NVIDIA, CUDA Driver API, "Tensor Map Object Management"."""

import ctypes
from functools import lru_cache
from uuid import UUID

import numpy as np

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.boxes import Boxes, PixelBoxes

DRIVER, UUID_BYTES = "libcuda.so.1", 16
TYPES = {"float16": 6, "bfloat16": 9}  # CU_TENSOR_MAP_DATA_TYPE_…
PLAIN, SWIZZLE_128B, L2_128B, FILL_ZERO = 0, 3, 2, 0  # interleave, swizzle, promotion to the L2 cache, what is outside
BYTES, ALIGNMENT = 128, 128  # the driver wants 64; its type has 128 since CUDA 13
KEPT = 4096
VALUE = np.dtype((np.void, BYTES))  # CuPy passes an array of one element by value


def uuid_of(index: int, known: bytes) -> str:
    """Return GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx for the device with CUDA's number ``index``. ``known``: the UUID
    in CuPy's properties, which ends before the first byte of 0; it is used if the driver does not answer."""
    return f"GPU-{UUID(bytes=_asked(index) or known[:UUID_BYTES].ljust(UUID_BYTES, bytes(1)))}"


def _asked(index: int) -> bytes | None:
    """Return the UUID by cuDeviceGetUuid_v2, which drivers have had since CUDA 11.4."""
    try:
        driver = ctypes.CDLL(DRIVER)
        device, uuid = ctypes.c_int(), ctypes.create_string_buffer(UUID_BYTES)
        calls = (
            lambda: driver.cuInit(0),
            lambda: driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)),
            lambda: driver.cuDeviceGetUuid_v2(uuid, device),
        )
        return None if any(call() for call in calls) else uuid.raw
    except (OSError, AttributeError):  # no such library, or no such function in it
        return None


@lru_cache(KEPT)
def encoded(address: int, dtype: str, boxes: Boxes | PixelBoxes) -> np.ndarray:
    """Return the CUtensorMap of an array at an address. Raises: DeviceError if the driver refuses."""
    memory = np.zeros(BYTES + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    value = memory[start : start + BYTES]
    error = _encode(ctypes.CDLL(DRIVER), value.ctypes.data, address, TYPES[dtype], boxes)
    if error:
        raise DeviceError(f"the driver refuses to encode {boxes}: CUDA error {error}")
    return value.view(VALUE).reshape(())


def _encode(driver, value: int, address: int, kind: int, boxes) -> int:
    """Return the driver's error, 0 for none."""
    rank = len(boxes.extents)
    itemsize = 2
    array = (
        ctypes.c_void_p(value),
        ctypes.c_int(kind),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*boxes.extents),
        (ctypes.c_uint64 * (rank - 1))(*(stride * itemsize for stride in boxes.strides)),
    )
    rest = tuple(map(ctypes.c_int, (PLAIN, SWIZZLE_128B, L2_128B, FILL_ZERO)))
    if isinstance(boxes, Boxes):
        box, ones = (ctypes.c_uint32 * rank)(*boxes.box), (ctypes.c_uint32 * rank)(*[1] * rank)
        return driver.cuTensorMapEncodeTiled(*array, box, ones, *rest)
    corners = (ctypes.c_int * 2)(*boxes.lower), (ctypes.c_int * 2)(*boxes.upper)
    sizes = ctypes.c_uint32(boxes.channels), ctypes.c_uint32(boxes.pixels)
    steps = (ctypes.c_uint32 * rank)(1, boxes.step, boxes.step, 1)
    return driver.cuTensorMapEncodeIm2col(*array, *corners, *sizes, steps, *rest)
