"""Memory of a device that is not there: poisoned when it is new, with guards on either side, and shared by files."""

import mmap
import os
import weakref
from pathlib import Path

import numpy as np

GUARD_BYTES, ALIGNMENT = 256, 256
GUARD = bytes([0xC3]) * GUARD_BYTES
SHARED = Path("/dev/shm")
NAME_BYTES = 64  # as of a handle of CUDA's


def is_float(dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def poison(memory) -> None:
    """NaN in every floating-point type; 0xA5 bytes in integers."""
    memory.reshape(-1).view(np.uint8).fill(0xFF if is_float(memory.dtype) else 0xA5)


class Allocations:
    """Arrays with guards around them, which tell who writes out of bounds."""

    def __init__(self):
        self._alive = {}
        self._serial = 0

    def new(self, shape, dtype) -> np.ndarray:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = np.empty(nbytes + 2 * GUARD_BYTES + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT + GUARD_BYTES
        raw = raw[start - GUARD_BYTES : start + nbytes + GUARD_BYTES]
        raw[:GUARD_BYTES] = raw[GUARD_BYTES + nbytes :] = GUARD[0]
        inner = raw[GUARD_BYTES : GUARD_BYTES + nbytes]
        memory = inner.view(dtype).reshape(shape)
        poison(memory)
        self._watch(raw, shape, dtype)
        return memory

    def _watch(self, raw, shape, dtype):
        key = self._serial = self._serial + 1
        owner = raw.base  # lives as long as any view of it
        self._alive[key] = (
            weakref.ref(owner, lambda _: self._alive.pop(key, None)),
            raw.ctypes.data,
            raw.size,
            shape,
            dtype,
        )

    def damaged(self) -> str | None:
        """The first array beyond whose end, or before whose start, something was written."""
        for owner, start, size, shape, dtype in list(self._alive.values()):
            alive = owner()
            if alive is None:
                continue
            offset = start - alive.ctypes.data
            for where, at in (("before", offset), ("beyond", offset + size - GUARD_BYTES)):
                if alive[at : at + GUARD_BYTES].tobytes() != GUARD:
                    return f"something was written {where} an array of shape {shape}, {dtype.name}"
        return None


class SharedFile:
    """Memory that another process can map, by a name."""

    def __init__(self, path: Path, nbytes: int, create: bool):
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        handle = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(handle, nbytes)
            self._map = mmap.mmap(handle, nbytes)
        finally:
            os.close(handle)
        self.memory = np.frombuffer(self._map, np.uint8)
        self.path = path
        if create:
            weakref.finalize(self, path.unlink, missing_ok=True)
