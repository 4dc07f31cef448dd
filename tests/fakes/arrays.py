"""Arrays of libraries that are not there: behind the rules of the real ones."""

from types import ModuleType, SimpleNamespace

import numpy as np

from ringtrain.api import libraries
from ringtrain.api.libraries import BorrowedArray
from ringtrain.ops import bfloat16


class Device:
    """``devices``: of whom ``current`` is CuPy's."""

    def __init__(self, devices: SimpleNamespace, index: int):
        self._devices, self.id = devices, index

    def __enter__(self):
        self._before, self._devices.current = self._devices.current, self.id

    def __exit__(self, *_):
        self._devices.current = self._before


def cupy_like() -> ModuleType:
    """A module with what the door uses of CuPy. Its arrays show their memory by ``get()`` alone, and can be written
    from arrays of the same module and device alone."""
    module, devices = ModuleType("cupy"), SimpleNamespace(current=0)

    class ndarray:
        def __init__(self, memory, device):
            self._memory, self.device = memory, device

        @property
        def dtype(self):
            return self._memory.dtype

        def get(self):
            return self._memory.copy()

        def __setitem__(self, index, value):
            assert isinstance(value, ndarray), "CuPy takes no NumPy arrays"
            assert value.device.id == devices.current == self.device.id, "an array of another device"
            self._memory[index] = value._memory

        def __getitem__(self, index):
            return ndarray(self._memory[index], self.device)

        def __array__(self, *_, **__):
            raise TypeError("Implicit conversion to a NumPy array is not allowed.")

        def __dlpack_device__(self):
            return (2, self.device.id)

        def __dlpack__(self, **_):
            raise BufferError("device memory")

    def asarray(host):
        assert isinstance(host, np.ndarray)
        return ndarray(host.copy(), Device(devices, devices.current))

    ndarray.__module__ = "cupy"
    module.ndarray, module.asarray = ndarray, asarray
    module.Device = lambda index: Device(devices, index)
    return module


class Lender:
    """An array of a library that speaks DLPack and is nobody's: over NumPy's, whose read-only flag it passes on."""

    def __init__(self, array, device=(1, 0)):
        self._array, self._device = array, device

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


def halves(monkeypatch) -> type:
    """The class of a library that has bfloat16 arrays and nothing else: the door is told of it."""

    class Halves:
        def __init__(self, values):
            self.bits = bfloat16.encode(np.array(values))

        def values(self):
            return bfloat16.decode(self.bits)

    def lend_halves(array):
        return BorrowedArray(array.bits, "bfloat16", lambda host: Halves(bfloat16.decode(host)))

    Halves.__module__ = "halves"
    monkeypatch.setitem(libraries.BY_LIBRARY, "halves", lend_halves)
    return Halves
