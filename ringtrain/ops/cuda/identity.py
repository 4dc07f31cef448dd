"""The identity of a device: its UUID, as nvidia-smi and the driver's files under /proc write it."""

import ctypes
from uuid import UUID

DRIVER, BYTES = "libcuda.so.1", 16


def uuid_of(index: int, known: bytes) -> str:
    """Return GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx for the device with CUDA's number ``index``. ``known``: the UUID
    in CuPy's properties, which ends before the first byte of 0; it is used if the driver does not answer.
    """
    return f"GPU-{UUID(bytes=_asked(index) or known[:BYTES].ljust(BYTES, bytes(1)))}"


def _asked(index: int) -> bytes | None:
    """Return the UUID by cuDeviceGetUuid_v2, which drivers have had since CUDA 11.4."""
    try:
        driver = ctypes.CDLL(DRIVER)
        device, uuid = ctypes.c_int(), ctypes.create_string_buffer(BYTES)
        calls = (
            lambda: driver.cuInit(0),
            lambda: driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)),
            lambda: driver.cuDeviceGetUuid_v2(uuid, device),
        )
        return None if any(call() for call in calls) else uuid.raw
    except (OSError, AttributeError):  # no such library, or no such function in it
        return None
