"""One device by CuPy: its streams, events, kernels and graphs. CuPy's module is passed in."""

import functools
import threading

import numpy as np

from ringtrain.errors import DeviceError
from ringtrain.ops.base import Mark
from ringtrain.ops.cuda.boxes import TensorMap
from ringtrain.ops.cuda.faults import explain

SHARED_WITHOUT_ASKING = 48 << 10  # bytes of dynamic shared memory that any kernel may have


def as_device_errors(doing):
    """Decorate a method: errors of CuPy become DeviceError, and the method makes the device current for this thread."""

    def tell(method):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            try:
                self.device.enter()
                return method(self, *args, **kwargs)
            except DeviceError:
                raise
            except Exception as error:
                words = explain(error, self.device.index, doing)
                if words is None:
                    raise
                raise DeviceError(words) from error

        return call

    return tell


DONE, NOT_READY = 0, 600  # cudaSuccess, cudaErrorNotReady


class CupyDevice(threading.local):
    """The state that streams, events and kernels of one device share, for each thread its own. ``kept``: the arrays of
    what this thread records; None where it records nothing."""

    def __init__(self, cupy, index):
        self.cupy, self.index, self.kept, self._entered = cupy, index, None, False

    def enter(self):
        """Make the device current: CUDA's current device belongs to a thread."""
        if not self._entered:
            self.cupy.cuda.runtime.setDevice(self.index)
            self._entered = True

    def keep(self, *arrays):
        if self.kept is not None:
            self.kept.extend(arrays)

    def refuse_while_recording(self, action):
        if self.kept is not None:
            raise DeviceError(f"{action} while work is recorded; it cannot be part of a graph")


class CupyEvent(Mark):
    """An event by CuPy."""

    def __init__(self, device, event):
        self.device, self.event = device, event

    @as_device_errors("asking for an event")
    def done(self):
        status = self.device.cupy.cuda.runtime.eventQuery(self.event.ptr)
        if status not in (DONE, NOT_READY):
            self.event.synchronize()  # raises a kernel's error, which a query would report as "not ready" forever
        return status == DONE

    @as_device_errors("waiting for an event")
    def wait(self):
        self.device.refuse_while_recording("an event was waited for")
        self.event.synchronize()

    @as_device_errors("the time between events")
    def seconds_since(self, earlier):
        return self.device.cupy.cuda.get_elapsed_time(earlier.event, self.event) / 1000


class CupyStream:
    """A stream of a device. ``pointer``: its cudaStream_t for other libraries of CUDA. ``cublas``: made by the stream's
    first product."""

    def __init__(self, device):
        self.device, self.cublas = device, None
        self.stream = device.cupy.cuda.Stream(non_blocking=True)
        self.pointer = self.stream.ptr

    @as_device_errors("recording an event")
    def record(self, timed: bool = False) -> CupyEvent:
        """Return an event after all work issued so far."""
        event = self.device.cupy.cuda.Event(disable_timing=not timed)
        event.record(self.stream)
        return CupyEvent(self.device, event)

    @as_device_errors("waiting for an event")
    def after(self, event: CupyEvent) -> None:
        """Let work issued from now on wait for the event."""
        self.stream.wait_event(event.event)

    @as_device_errors("the begin of a recording")
    def begin(self):
        self.stream.begin_capture()

    @as_device_errors("the end of a recording")
    def end(self):
        return self.stream.end_capture()

    @as_device_errors("the work of a stream")
    def synchronize(self) -> None:
        """Block this thread until all issued work is done. Raises DeviceError for a kernel's failure."""
        self.device.refuse_while_recording("a stream was waited for")
        self.stream.synchronize()


class CupyKernel:
    """A function of a compiled module."""

    def __init__(self, device, raw):
        self.device, self._raw = device, raw
        self._function = raw.kernel
        self._dynamic = SHARED_WITHOUT_ASKING

    @as_device_errors("the launch of a kernel")
    def launch(
        self, blocks: tuple[int, ...], threads: tuple[int, ...], stream: CupyStream, arguments, shared_bytes: int
    ) -> None:
        """``arguments``: arrays (None is a null pointer), maps and NumPy scalars, of the types of the function's
        parameters. ``shared_bytes``: dynamic shared memory, up to the device's :attr:`Facts.shared_bytes`."""
        if shared_bytes > self._dynamic:
            self._raw.max_dynamic_shared_size_bytes = self._dynamic = shared_bytes
        values = tuple(map(_passed, arguments))
        self.device.keep(*arguments)
        self._function(blocks, threads, values, shared_bytes, stream.stream)


def _passed(argument):
    """Return what CuPy passes for an argument."""
    if argument is None:
        return np.uint64(0)
    return argument.value if isinstance(argument, TensorMap) else argument


class CupyGraph:
    """Recorded work. ``kept``: the arrays that it works on."""

    def __init__(self, device, graph, kept):
        self.device, self._graph, self._kept = device, graph, kept

    @as_device_errors("the launch of a graph")
    def launch(self, stream: CupyStream) -> None:
        self.device.refuse_while_recording("a graph was launched")
        self._graph.launch(stream.stream)
