"""Buffers of a benchmark in the memory of this rank's device."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ringtrain.bench.measure.buffers import DeviceBuffers
from ringtrain.transport.agree import together
from ringtrain.transport.base import Transport
from ringtrain.transport.cuda_aware.decision import YES
from ringtrain.transport.device.cuda_ipc import CudaIpc
from ringtrain.transport.device.wrapper import DIRECT, STAGED, DeviceTransport


class BenchDevices(NamedTuple):
    """The functions that reach a device; tests have others.

    index:   () → the number of this rank's device among the visible ones
    runtime: (index) → its runtime
    ops:     (runtime, dtype) → operations
    choose:  (transport, index) → how device memory goes (:func:`ringtrain.transport.world.choose_way`); before any
             rank uses its device
    """

    index: Callable
    runtime: Callable
    ops: Callable
    choose: Callable


def device_buffers(transport: Transport, cuda: BenchDevices) -> tuple[DeviceBuffers, str]:
    """Return (buffers, a line about the way of messages). Collective. Raises DeviceError."""
    index = together(transport, cuda.index)
    choice = cuda.choose(transport, index)
    runtime = together(transport, lambda: cuda.runtime(index))
    tried = any(rung.name == "trial" and rung.answer == YES for rung in choice.rungs)
    names = dict.fromkeys([choice.way, STAGED, *([DIRECT] if tried else [])])
    ipc = CudaIpc(transport, runtime)
    transports = {name: DeviceTransport(transport, runtime, name, ipc=ipc) for name in names}
    note = f"{choice.words}; ranks of a node do not map each other's buffers: {ipc.why}" if ipc.why else choice.words
    return DeviceBuffers(runtime, partial(cuda.ops, runtime), transports), note
