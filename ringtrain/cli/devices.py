"""Buffers of a benchmark in the memory of this rank's device."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ringtrain.bench.measure.buffers import NCCL, DeviceBuffers
from ringtrain.bench.measure.nccl import Nccl, load_from_cupy
from ringtrain.cli.doctor import MAKER
from ringtrain.cli.output import echo
from ringtrain.launch.binding import bind
from ringtrain.transport.agree import together
from ringtrain.transport.base import Transport
from ringtrain.transport.cuda_aware.decision import YES
from ringtrain.transport.device.cuda_ipc import CudaIpc
from ringtrain.transport.device.wrapper import DIRECT, STAGED, DeviceTransport
from ringtrain.transport.world import choose_way


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


def with_device(transport: Transport, asked, cuda: BenchDevices, load_nccl: Callable | None = None):
    """Return the transport, the sweep with NCCL among its baselines, its buffers, and a function that frees NCCL's
    resources. Collective. Raises DeviceError."""
    buffers, note = device_buffers(transport, cuda)
    if transport.rank == 0:
        echo(f"# {note}")
    nccl = Nccl(buffers, load_nccl or load_from_cupy)
    return buffers.transport, replace(asked, baselines={NCCL: nccl}), buffers, nccl.close


def device_buffers(transport: Transport, cuda: BenchDevices):
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


def real_cuda(transport: Transport) -> BenchDevices:
    from ringtrain.ops.cuda import CudaOps
    from ringtrain.ops.cuda.cupy_runtime import make_runtime, visible_devices

    def index() -> int:
        return bind(os.environ, visible_devices(), transport.local_rank)

    return BenchDevices(index, make_runtime, CudaOps, lambda world, number: choose_way(world, "auto", number, MAKER))
