"""A device that is not there: host memory behind the rules that a GPU's memory would enforce.

An array refuses to be read, to be mixed with NumPy, or to be used in any way but those that ``Ops`` allows its
callers. Operations are queued when they are issued and done at the next ``synchronize`` (or ``to_host``, or an
operation that returns a number), so that who reads too early sees poison: NaN, or 0xAB bytes in integers.
"""

import abc
import inspect

import numpy as np

from ringtrain.ops.base import Ops
from ringtrain.ops.reference import ReferenceOps

POISON_BYTE = 0xAB


class DeviceRefusal(TypeError):
    """Something that a real device's array would not allow either."""


class DeviceArray:
    """Has ``.shape``, ``.dtype``, ``.size``, leading slices and ``reshape``; no other use."""

    __array_ufunc__ = None  # NumPy's operators give up at once

    def __init__(self, memory, device):
        self._memory, self._device = memory, device

    @property
    def shape(self):
        return self._memory.shape

    @property
    def dtype(self):
        return self._memory.dtype

    @property
    def size(self):
        return self._memory.size

    def reshape(self, *shape):
        view = self._memory.reshape(*shape)
        return DeviceArray(view, self._device)

    def __getitem__(self, index):
        if not isinstance(index, slice) or index.step not in (None, 1):
            raise DeviceRefusal(f"a device array was indexed by {index!r}; only slices a:b of the leading axis")
        return DeviceArray(self._memory[index], self._device)

    def __repr__(self):
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype})"


def _refuse(name):
    def method(self, *_args, **_kwargs):
        raise DeviceRefusal(f"{name} of a device array: its memory is not the host's; use Ops.to_host")

    return method


for _name in (
    "__array__", "__array_function__", "__bool__", "__complex__", "__contains__", "__eq__", "__float__", "__ge__",
    "__gt__", "__hash__", "__index__", "__int__", "__iter__", "__le__", "__len__", "__lt__", "__ne__", "__setitem__",
):  # fmt: skip
    setattr(DeviceArray, _name, _refuse(_name))


def span_memory(array):
    """The memory of a device array, for a fake of a transport that moves device memory.

    Raises: DeviceRefusal where operations are still queued: a transport must be called after ``synchronize``.
    """
    if array._device.queued:
        first = array._device.queued[0][0]
        raise DeviceRefusal(
            f"device memory was handed to a transport with {len(array._device.queued)} operations still queued "
            f"(first: {first}); call Ops.synchronize before"
        )
    return array._memory


def queueing(cls):
    """Give a class each operation of Ops that it does not spell out: issued now, done later."""
    for name in Ops.__abstractmethods__ - set(vars(cls)):
        setattr(cls, name, _queued(name))
    return abc.update_abstractmethods(cls)


def _queued(name):
    signature = inspect.signature(getattr(Ops, name))

    def method(self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs)
        del bound.arguments["self"]
        operands = {key: self._operand(name, key, value) for key, value in bound.arguments.items()}
        self.queued.append((name, operands))

    method.__name__ = name
    return method


@queueing
class FakeDeviceOps(Ops):
    """The reference's arithmetic, late, on memory that is out of reach. ``queued``: (operation, operands) to do."""

    name = "fake device"

    def __init__(self, dtype="float32"):
        super().__init__(dtype)
        self._reference = ReferenceOps(dtype)
        self.queued: list[tuple[str, dict]] = []

    def describe(self):
        return "a fake device"

    def compile_stats(self):
        return 0, 0

    def threads(self, count):
        """There are none to set."""

    def empty(self, shape, dtype=None):
        memory = np.empty(shape, self.dtype if dtype is None else dtype)
        if memory.dtype.kind == "f":
            memory.fill(np.nan)
        else:
            memory.reshape(-1).view(np.uint8).fill(POISON_BYTE)
        return DeviceArray(memory, self)

    def upload(self, host, out):
        """The host's array is read now, and may change from here on; it arrives later."""
        if not isinstance(host, np.ndarray):
            raise DeviceRefusal(f"upload from {type(host).__name__}; it takes a NumPy array")
        staged = np.array(host)
        self.queued.append(("upload", {"host": staged, "out": self._operand("upload", "out", out)}))

    def to_host(self, x):
        memory = self._operand("to_host", "x", x)
        self.synchronize()
        return memory.copy()

    def download(self, x, host):
        if not isinstance(host, np.ndarray):
            raise DeviceRefusal(f"download to {type(host).__name__}; it fills a NumPy array")
        memory = self._operand("download", "x", x)
        self.synchronize()
        self._reference.download(memory, host)

    def synchronize(self):
        while self.queued:
            name, operands = self.queued.pop(0)
            getattr(self._reference, name)(**operands)

    def square_sum(self, x):
        memory = self._operand("square_sum", "x", x)
        self.synchronize()
        return self._reference.square_sum(memory)

    def nonfinite(self, x):
        memory = self._operand("nonfinite", "x", x)
        self.synchronize()
        return self._reference.nonfinite(memory)

    def _operand(self, operation, key, value):
        """What the reference is to be called with. Raises: DeviceRefusal for arrays that are not this device's."""
        if isinstance(value, DeviceArray):
            if value._device is not self:
                raise DeviceRefusal(f"{operation}: {key} is an array of another device")
            return value._memory
        if isinstance(value, (list, tuple)):
            return [self._operand(operation, key, item) for item in value]
        if isinstance(value, np.ndarray):
            raise DeviceRefusal(f"{operation}: {key} is a NumPy array of shape {value.shape}; upload it first")
        return value
