"""The operations of a GPU with the reference's arithmetic in place of kernels, for tests of order alone.

Memory, copies, streams, marks and segments are those of :class:`CudaOps`, over the one fake of CUDA: each operation is
one piece of work on a stream of :class:`HostRuntime`. So it needs no compiler, and its bits are those of the host.
"""

import inspect
from dataclasses import replace
from functools import partial

import numpy as np

from ringtrain.ops.base import Ops
from ringtrain.ops.cuda import PARTS, CudaOps
from ringtrain.ops.cuda.convolution import CudaConvolution
from ringtrain.ops.cuda.segments import Segments
from ringtrain.ops.normalised import Normalised, NormStatistics
from ringtrain.ops.precision import RoundedWeights
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.host_cuda import HostRuntime
from tests.fakes.host_memory import DeviceArray, DeviceRefusal
from tests.ops.cases import STATISTICS


class CheckedSegments(Segments):
    """Refuses a segment that cannot be recorded, and one that does not issue the same work in its first three runs."""

    def __init__(self, device):
        super().__init__(device)
        self._issued, self.replays = {}, 0

    def __call__(self, key, run):
        if self._device.recording:
            return run()
        runs = self._segments[key].runs if key in self._segments else 0
        if runs == 2:
            with self._device.record() as graphs:
                run()
            self._compare(key, graphs[0].work)
        self.replays += runs > 2
        with self._device.stream.scheduler.logged() as issued:
            value = super().__call__(key, run)
        segment = self._segments[key]
        if runs == 0:
            self._issued[key] = [_signature(work) for work in issued]
        elif segment.refusal:
            raise DeviceRefusal(f"segment {key}: {segment.refusal}")
        elif runs == 1:
            self._compare(key, segment.graph.work)
        return value

    def _compare(self, key, work):
        if [_signature(each) for each in work] != self._issued[key]:
            names = [each.name for each in work], [name for name, _ in self._issued[key]]
            raise DeviceRefusal(f"segment {key} issues {names[0]}, and before {names[1]}: the key must tell them apart")


class FakeGpuOps(CudaOps):
    """``replays``: of segments, without running them."""

    def __init__(self, runtime=None, dtype="float32", precision="float32", device=None):
        super().__init__(runtime or HostRuntime(), dtype, precision, device)
        self._reference, self._segments = ReferenceOps(dtype, precision), CheckedSegments(self._device)

    @property
    def replays(self):
        return self._segments.replays

    def beside(self):
        side = super().beside()
        side._device.stream.early = self.runtime.hasty
        return side

    def fetch(self, x, host):
        if not self.runtime.is_pinned(host):
            raise DeviceRefusal("fetch to memory that is not pinned: it would be waited for; use Ops.pinned")
        super().fetch(x, host)

    def moment_parts(self, shape, ghost):
        return self._reference.moment_parts(shape, ghost)

    def positive_bytes(self, shape):
        return self._reference.positive_bytes(shape)

    def put(self, *values):
        writes = [(self.runtime.memory_of(x), value) for x, value in values]
        self._device.stream.issue("put", lambda: self._reference.put(*writes), {"arrays": [x for x, _ in writes]})

    def update(self, rule, ranges, w, g, slots, first, numbers, squares_N2=None):
        self._update("update", rule, ranges, w, g, slots, first, numbers, squares_N2)

    def update_squares(self, rule, ranges, w, g, slots, first, numbers, squares_N2):
        self._update("update_squares", rule, ranges, w, g, slots, first, numbers, squares_N2)

    def _update(self, name, rule, ranges, w, g, slots, first, *rest):
        """Of the arrays no more than the ranges are touched."""
        memory, touched = [self._operand(each) for each in (w, g, slots, *rest)], {}
        if ranges:
            start, stop = ranges[0].start, ranges[-1].stop
            touched = {"arrays": [each[start:stop] for each in memory[:2]], "ranges": [start, stop, first]}
        run = partial(getattr(self._reference, name), rule, ranges, *memory[:3], first, *memory[3:])
        self._device.stream.issue(name, run, touched)

    def square_sum(self, x):
        return self._now("square_sum", x)

    def nonfinite(self, x):
        return self._now("nonfinite", x)

    def _now(self, name, x):
        memory = self.runtime.memory_of(x)
        self.synchronize()
        return getattr(self._reference, name)(memory)

    def _operand(self, value):
        """The memory of arrays, as the reference is called with it."""
        if isinstance(value, NormStatistics):
            return replace(value, **{name: self._operand(getattr(value, name)) for name in STATISTICS})
        if isinstance(value, RoundedWeights):
            return self._operand(value.weights)
        if isinstance(value, Normalised):
            return Normalised(*map(self._operand, value))
        if isinstance(value, (list, tuple)):
            return [self._operand(item) for item in value]
        return self.runtime.memory_of(value) if isinstance(value, (DeviceArray, np.ndarray)) else value


def _queued(name):
    """The operation of Ops: issued now, done when its stream is waited for."""
    signature = inspect.signature(getattr(Ops, name))

    def method(self, *args, **kwargs):
        arguments = signature.bind(None, *args, **kwargs).arguments
        operands = {key: self._operand(value) for key, value in arguments.items() if key != "self"}
        self._device.stream.issue(name, partial(getattr(self._reference, name), **operands), operands)

    return method


def _outside_recordings(name):
    inherited = getattr(FakeGpuOps, name)

    def method(self, *args, **kwargs):
        self._device.stream.scheduler.refuse_while_recording(f"{name} was called")
        return inherited(self, *args, **kwargs)

    return method


_operations = {name for part in (*PARTS, CudaConvolution) for name in vars(part)}
for _name in _operations & Ops.__abstractmethods__ - set(vars(FakeGpuOps)):
    setattr(FakeGpuOps, _name, _queued(_name))
for _name in ("upload", "fetch", "mark", "after", "beside", "segment"):
    setattr(FakeGpuOps, _name, _outside_recordings(_name))


def _signature(work):
    """The work on these arrays and numbers, for comparison."""
    return work.name, tuple(_where(value) for value in work.operands.values())


def _where(value):
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.shape, value.dtype.str
    if isinstance(value, NormStatistics):
        return tuple(_where(getattr(value, name)) for name in STATISTICS)
    return tuple(_where(item) for item in value) if isinstance(value, (list, Normalised)) else value
