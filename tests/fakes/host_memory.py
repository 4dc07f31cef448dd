"""Memory of a device that is not there: poisoned when it is new, guarded on either side; and shared by processes."""

import mmap
import os
import weakref
from pathlib import Path

import numpy as np

from ringtrain.errors import DeviceError
from ringtrain.ops.normalised import NormStatistics
from tests.ops.cases import STATISTICS

GUARD_BYTES, ALIGNMENT = 256, 256
GUARD = bytes([0xC3]) * GUARD_BYTES
NAME_BYTES = 64  # as of a handle of CUDA's


class DeviceRefusal(TypeError):
    """Something that a real device's array would not allow either."""


class DeviceArray:
    """Has ``.shape``, ``.dtype``, ``.size``, leading slices and ``reshape``; no other use."""

    __array_ufunc__ = None  # NumPy's operators give up at once

    def __init__(self, memory, device):
        self._memory, self._device = memory, device

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    size = property(lambda self: self._memory.size)

    def __repr__(self):
        return f"DeviceArray(shape={self.shape}, {self.dtype})"

    def reshape(self, *shape):
        return DeviceArray(self._memory.reshape(*shape), self._device)

    def __getitem__(self, index):
        if not isinstance(index, slice) or index.step not in (None, 1):
            raise DeviceRefusal(f"a device array was indexed by {index!r}; only slices a:b of the leading axis")
        return DeviceArray(self._memory[index], self._device)


def _refuse(name):
    def method(self, *_args, **_kwargs):
        raise DeviceRefusal(f"{name} of a device array: its memory is not the host's; use Ops.to_host")

    return method


for _name in (
    "__array__", "__array_function__", "__bool__", "__complex__", "__contains__", "__eq__", "__float__", "__ge__",
    "__gt__", "__hash__", "__index__", "__int__", "__iter__", "__le__", "__len__", "__lt__", "__ne__", "__setitem__",
):  # fmt: skip
    setattr(DeviceArray, _name, _refuse(_name))


def arrays_of(operands, but=()):
    """The memory that a piece of work is on, without operands of some names."""
    yield from _arrays_in([value for name, value in operands.items() if name not in but], but)


def _arrays_in(operand, but):
    if isinstance(operand, np.ndarray):
        yield operand
    elif isinstance(operand, (list, tuple)):
        for each in operand:
            yield from _arrays_in(each, but)
    elif isinstance(operand, NormStatistics):
        yield from arrays_of({name: getattr(operand, name) for name in STATISTICS}, but)


def poison(memory) -> None:
    """NaN in every floating-point type; 0xA5 bytes in integers."""
    is_float = memory.dtype.kind == "f" or memory.dtype.name == "bfloat16"
    memory.reshape(-1).view(np.uint8).fill(0xFF if is_float else 0xA5)


class Allocations:
    """Arrays with guards around them, which tell who writes out of bounds."""

    def __init__(self):
        self._alive = {}
        self._serial = self.nbytes = 0

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
        nbytes = raw.size - 2 * GUARD_BYTES
        self.nbytes += nbytes

        def forget(_):
            del self._alive[key]
            self.nbytes -= nbytes

        self._alive[key] = weakref.ref(owner, forget), raw.ctypes.data, raw.size, shape, dtype

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


class SharedMemory:
    """Memory that other processes map by a name, which is gone with the last process that has it, however that ends:
    it has no name in any file system. ``memory`` is uint8; the owner's goes when nothing refers to it any more."""

    def __init__(self, nbytes: int):
        handle = os.memfd_create("ringtrain-fake-device")
        os.ftruncate(handle, nbytes)
        self.memory = _mapped(handle, nbytes)
        self.name = f"{os.getpid()}/fd/{handle}/{os.fstat(handle).st_ino}"
        weakref.finalize(self.memory, os.close, handle)


def open_shared(name: str, nbytes: int) -> np.ndarray:
    """What another process has named. Raises OSError where it is gone."""
    handle = os.open(_path(name), os.O_RDWR)
    try:
        if os.fstat(handle).st_size < nbytes:
            raise DeviceError(f"{nbytes} bytes of shared memory of {os.fstat(handle).st_size}")
        return _mapped(handle, nbytes)
    finally:
        os.close(handle)


def is_there(name: str) -> bool:
    """Whether its owner still has it."""
    try:
        return os.stat(_path(name)).st_ino == int(name.rpartition("/")[2])
    except OSError:
        return False


def _path(name: str) -> Path:
    return Path("/proc") / name.rpartition("/")[0]


def _mapped(handle: int, nbytes: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(handle, nbytes), np.uint8)
