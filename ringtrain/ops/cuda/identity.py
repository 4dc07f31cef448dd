"""Which of the world's devices one is: its UUID, as nvidia-smi and the driver's files under /proc write it."""

import ctypes
from uuid import UUID

DRIVER, BYTES = "libcuda.so.1", 16


def uuid_of(index: int, known: bytes) -> str:
    """GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, of the device that CUDA numbers ``index``. ``known``: what CuPy's
    properties have, which ends before the first byte of 0; it is good enough where the driver does not answer."""
    return f"GPU-{UUID(bytes=_asked(index) or known[:BYTES].ljust(BYTES, bytes(1)))}"


def _asked(index: int) -> bytes | None:
    """By cuDeviceGetUuid_v2, which drivers have had since CUDA 11.4."""
    try:
        driver = ctypes.CDLL(DRIVER)
        device, found = ctypes.c_int(), ctypes.create_string_buffer(BYTES)
        calls = (
            lambda: driver.cuInit(0),
            lambda: driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)),
            lambda: driver.cuDeviceGetUuid_v2(found, device),
        )
        return None if any(call() for call in calls) else found.raw
    except (OSError, AttributeError):  # no such library, or no such function in it
        return None
