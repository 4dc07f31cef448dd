"""Opens the device of ``--device`` and ``--precision``: the operations of this rank, and a transport that moves their
arrays. CUDA is imported at its first use.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ringtrain.config.record import DeviceConfig, TrainConfig
from ringtrain.launch.binding import bind, binding_table
from ringtrain.ops.base import Ops
from ringtrain.ops.catalogue import make_ops
from ringtrain.ops.precision import active_dtype
from ringtrain.transport.agree import together
from ringtrain.transport.base import Transport

CPU, CUDA = "cpu", "cuda"


class CudaDevices(NamedTuple):
    """The functions that open devices."""

    visible: Callable[[], int]  # () → the number of devices that this process sees
    runtime: Callable[[int], Any]  # (index) → the runtime of a device
    # (runtime, dtype, precision, fixed) → operations; fixed: chosen by size alone, never by a timing
    ops: Callable[..., Ops]
    # (transport, ``--mpi-cuda``, index) → (runtime → a transport that moves its arrays, notes on it); collective,
    # and before the first use of the device
    wrap: Callable[[Transport, str, int], tuple[Callable[[Any], Transport], tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    """The operations of this rank. ``notes``: lines for the user, on the devices of all ranks"""

    ops: Ops
    transport: Transport
    notes: tuple[str, ...] = ()


def open_device(
    config: TrainConfig, transport: Transport, cuda: Callable[[], CudaDevices] | None = None
) -> OpenedDevice:
    """Open the device of ``--device``; collective. Raises ConfigError, DeviceError."""
    together(transport, lambda: check_device(config.device))
    if config.device.device == CPU:
        return OpenedDevice(together(transport, lambda: _host_ops(config.device)), transport)
    return _open_cuda(config, transport, cuda or cuda_devices)


def _open_cuda(config: TrainConfig, transport: Transport, cuda: Callable[[], CudaDevices]) -> OpenedDevice:
    devices = together(transport, cuda)
    index = together(transport, lambda: bind(os.environ, devices.visible(), transport.local_rank))
    wrap, notes = devices.wrap(transport, config.device.mpi_cuda, index)
    runtime = together(transport, lambda: devices.runtime(index))
    how = config.device.dtype, config.device.precision
    ops = together(transport, lambda: devices.ops(runtime, *how, fixed=config.exchange.reproducible))
    facts = runtime.facts
    everyone = transport.gather_json([transport.node, transport.local_rank, index, facts.name, facts.uuid])
    return OpenedDevice(ops, wrap(runtime), (*binding_table(everyone), *notes))


def _host_ops(config: DeviceConfig) -> Ops:
    ops = make_ops(config.ops, config.dtype)
    if config.threads is not None:
        ops.threads(config.threads)
    return ops


def check_device(config: DeviceConfig) -> None:
    """Raise ConfigError for a precision whose package is missing."""
    if config.device == CUDA:
        active_dtype(config.precision, config.dtype)


def cuda_devices() -> CudaDevices:
    from ringtrain.ops.cuda import CudaOps
    from ringtrain.ops.cuda.cupy_runtime import make_runtime, visible_devices
    from ringtrain.transport.world import choose_way, on_device

    def wrap(transport: Transport, mpi_cuda: str, index: int):
        choice = choose_way(transport, mpi_cuda, index, "ringtrain.ops.cuda.cupy_runtime:make_runtime")
        return (lambda runtime: on_device(transport, runtime, choice)), (choice.words,) if choice.words else ()

    return CudaDevices(visible_devices, make_runtime, CudaOps, wrap)
