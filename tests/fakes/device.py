"""A device that is not there: host memory behind the rules that a GPU's memory would enforce.

An array refuses to be read, to be mixed with NumPy, or to be used in any way but those that ``Ops`` allows its
callers. Operations are queued when they are issued and done at the next ``synchronize`` (or ``to_host``, or an
operation that returns a number, or a mark that is waited for), so that who reads too early sees poison: NaN, or 0xAB
bytes in integers. What is issued beside has a queue of its own, which is done as late as marks allow, or as early.

A segment is run the first time, recorded the second, compared the third (does it still issue the same?), and from then
on only what was recorded is done.
"""

import abc
import inspect
import weakref
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from ringtrain.errors import DeviceFullError
from ringtrain.ops.base import Ops
from ringtrain.ops.machine import Mark
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
    waiting = array._device.waiting()
    if waiting:
        raise DeviceRefusal(
            f"device memory was handed to a transport with {len(waiting)} operations still queued "
            f"(first: {waiting[0][0]}); call Ops.synchronize before"
        )
    return array._memory


@dataclass
class QueueMark(Mark):
    """After the first ``count`` operations of a queue."""

    ops: "FakeDeviceOps"
    count: int
    timed: bool = False

    def done(self):
        """Says "not yet" as often as operations are missing: each time somebody asks, one more is done; or all, where
        the device is quick."""
        if self.ops.performed < self.count:
            self.ops.perform(self.count if self.ops.quick else self.ops.performed + 1)
            return self.ops.quick
        return True

    def wait(self):
        self.ops.perform(self.count)

    def seconds_since(self, earlier):
        """A device does an operation in a tenth of a millisecond."""
        if not (self.timed and earlier.timed):
            raise DeviceRefusal("seconds between marks of which one is not timed")
        if max(self.count, earlier.count) > self.ops.performed:
            raise DeviceRefusal("seconds between marks of which one is not done")
        return (self.count - earlier.count) * 1e-4


@dataclass
class Recording:
    """calls: how often the segment was asked for; operations: what it issues; value: what it returned"""

    calls: int = 0
    operations: list = field(default_factory=list)
    value: object = None


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
        self._issue(name, operands)

    method.__name__ = name
    return method


@queueing
class FakeDeviceOps(Ops):
    """The reference's arithmetic, late, on memory that is out of reach.

    early:    whether what is issued beside is done as soon as marks allow
    quick:    whether what is asked for is done by then
    first:    what these operations are beside of
    capacity: bytes of its memory

    ``queued``: (operation, operands) to do, in order. ``performed``: how many were done. ``replays``: of segments,
    without running them.
    """

    name = "fake device"
    records = True

    def __init__(self, dtype="float32", precision="float32", early=False, first=None, quick=False, capacity=1 << 40):
        super().__init__(dtype, precision)
        self._reference = ReferenceOps(dtype, precision)
        self.queued: list[tuple[str, dict]] = []
        self.performed = self.replays = 0
        self._early, self._first, self._all, self.quick = early, first or self, [], quick
        self._first._all.append(self)
        self.capacity, self.used = capacity, 0
        self._pinned: list[np.ndarray] = []
        self.arriving: list[np.ndarray] = []  # memory that messages are about to arrive in
        self._segments: dict[object, Recording] = {}
        self._recording: str = ""  # what is recorded, in words

    def describe(self):
        return self.numerics()

    def numerics(self):
        return "a fake device"

    def compile_stats(self):
        return 0, 0

    def threads(self, count):
        """There are none to set."""

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def empty(self, shape, dtype=None):
        self._not_recorded("an allocation")
        memory = np.empty(shape, self.dtype if dtype is None else dtype)
        self._first._take(memory)
        _poison(memory)
        return DeviceArray(memory, self._first)

    def adopt(self, memory):
        """Memory that a transport has, as this device's."""
        return DeviceArray(memory, self._first)

    def _take(self, memory):
        if self.used + memory.nbytes > self.capacity:
            raise DeviceFullError(f"the device is full: {memory.nbytes} bytes were asked for")
        self.used += memory.nbytes
        weakref.finalize(memory, self._give, memory.nbytes)

    def _give(self, nbytes):
        self.used -= nbytes

    def memory(self):
        return self._first.capacity - self._first.used, self._first.capacity

    def pinned(self, shape, dtype):
        self._not_recorded("an allocation")
        memory = np.empty(shape, dtype)
        _poison(memory)
        self._first._pinned.append(memory)
        return memory

    def upload(self, host, out):
        """The host's array is read now, and may change from here on; it arrives later. Of pinned memory it is read
        then."""
        if not isinstance(host, np.ndarray):
            raise DeviceRefusal(f"upload from {type(host).__name__}; it takes a NumPy array")
        self._not_recorded("an upload")
        host = host if self._is_pinned(host) else np.array(host)
        self._issue("upload", {"host": host, "out": self._operand("upload", "out", out)})

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

    def fetch(self, x, host):
        if not self._is_pinned(host):
            raise DeviceRefusal("fetch to memory that is not pinned: it would be waited for; use Ops.pinned")
        self._not_recorded("a fetch")
        self._issue("fetch", {"x": self._operand("fetch", "x", x), "host": host})

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────
    def synchronize(self):
        self._not_recorded("a synchronisation")
        self.perform(self.performed + len(self.queued))

    def segment(self, key, run):
        self._not_recorded("a segment")
        held = self._segments.setdefault(key, Recording())
        held.calls += 1
        if held.calls == 1:
            before = len(self.queued)
            value = run()
            held.operations = [_signature(*one) for one in self.queued[before:]]
            return value
        if held.calls == 2:
            issued, held.value = self._record(key, run)
            self._same(key, held.operations, issued)
            held.operations = issued
        elif held.calls == 3:
            issued, _ = self._record(key, run)
            self._same(key, [_signature(*one) for one in held.operations], issued)
        else:
            self.replays += 1
        for name, operands in held.operations:
            self._issue(name, operands)
        return held.value

    def _record(self, key, run):
        """(what it issues, what it returns)"""
        queued, self.queued, self._recording = self.queued, [], f"segment {key}"
        try:
            value = run()
            return self.queued, value
        finally:
            self.queued, self._recording = queued, ""

    @staticmethod
    def _same(key, expected, issued):
        got = [_signature(*one) for one in issued]
        if got != expected:
            a, b = next((a, b) for a, b in zip_longest(got, expected) if a != b)
            raise DeviceRefusal(f"segment {key} issues {a}, and issued {b} before: the key must tell them apart")

    def mark(self, timed=False):
        self._not_recorded("a mark")
        return QueueMark(self, self.performed + len(self.queued), timed)

    def after(self, mark):
        self._not_recorded("a wait")
        self._issue("after", {"mark": mark})

    def beside(self):
        self._not_recorded("a stream")
        return FakeDeviceOps(self.dtype, self.precision, self._early, self._first, self.quick)

    def waiting(self):
        """(operation, operands) of all queues of the device."""
        return [one for ops in self._first._all for one in ops.queued]

    def perform(self, count):
        """The operations of this queue, until ``count`` were done."""
        while self.performed < count:
            name, operands = self.queued.pop(0)
            self.performed += 1
            if name == "after":
                operands["mark"].wait()
            else:
                getattr(self._reference, name)(**operands)

    def _issue(self, name, operands):
        for memory in arrays_of(operands):
            if any(np.may_share_memory(memory, coming) for coming in self._first.arriving):
                raise DeviceRefusal(f"{name} on memory that a message has still to arrive in")
        self.queued.append((name, operands))
        if self._early and self is not self._first and not self._recording:
            while self.queued and (self.queued[0][0] != "after" or self.queued[0][1]["mark"].done()):
                self.perform(self.performed + 1)

    def _not_recorded(self, what):
        if self._recording:
            raise DeviceRefusal(f"{self._recording}: {what} cannot be recorded")

    # ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────
    def square_sum(self, x):
        memory = self._operand("square_sum", "x", x)
        self.synchronize()
        return self._reference.square_sum(memory)

    def nonfinite(self, x):
        memory = self._operand("nonfinite", "x", x)
        self.synchronize()
        return self._reference.nonfinite(memory)

    def _is_pinned(self, host):
        return any(np.may_share_memory(host, block) for block in self._first._pinned)

    def _operand(self, operation, key, value):
        """What the reference is to be called with. Raises: DeviceRefusal for arrays that are not this device's."""
        if isinstance(value, DeviceArray):
            if value._device is not self._first:
                raise DeviceRefusal(f"{operation}: {key} is an array of another device")
            return value._memory
        if isinstance(value, (list, tuple)):
            return [self._operand(operation, key, item) for item in value]
        if isinstance(value, np.ndarray):
            raise DeviceRefusal(f"{operation}: {key} is a NumPy array of shape {value.shape}; upload it first")
        return value


# What operations call arrays that they only read: parameters in passes, and terms of sums.
READ = {"w_DK", "w_RSCK", "b_K", "gamma_C", "beta_C", "a", "b", "sources"}


def arrays_of(operands, but=()):
    """The memory that an operation is on, without operands of some names."""
    for operand in (value for name, value in operands.items() if name not in but):
        for memory in operand if isinstance(operand, list) else [operand]:
            if isinstance(memory, np.ndarray):
                yield memory


def _poison(memory):
    if memory.dtype.kind == "f":
        memory.fill(np.nan)
    else:
        memory.reshape(-1).view(np.uint8).fill(POISON_BYTE)


def _signature(name, operands):
    """An operation on these arrays and numbers, for comparison."""
    return name, tuple((key, _where(value)) for key, value in operands.items())


def _where(value):
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.shape, value.dtype.str
    if isinstance(value, list):
        return tuple(_where(item) for item in value)
    return value
