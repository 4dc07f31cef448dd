"""The buffers of a sweep, in host memory or on a device, and the operations on them besides the all-reduce.

Host memory is of two kinds: *shared* by the ranks of a node, as training's gradients are, and *ordinary*, a process's
own, as in most calls of an MPI. An MPI may be slower on the first by a half and more.

Messages of device memory may go in several *ways*: handed to the MPI by their address (direct), or staged through host
memory. Algorithms over messages are measured in each way that can run; the others once, over the first.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from ringtrain.allreduce.catalogue import AUTO, NATIVE, check_native
from ringtrain.allreduce.dtypes import MEAN, NumberType
from ringtrain.arrays import Array
from ringtrain.bench.measure.memory import check_device_memory, check_memory
from ringtrain.collectives.execution.reduction import HOST, Host
from ringtrain.collectives.shared_memory import MAPPED
from ringtrain.transport.base import Transport

if TYPE_CHECKING:  # a host loads no code of devices
    from ringtrain.ops.base import Ops
    from ringtrain.ops.cuda.cupy_runtime import CupyRuntime

NO_WAY = ""  # of algorithms without messages, or with one way only
CPU, CUDA = "cpu", "cuda"
SHARED, ORDINARY, OF_DEVICE = "shared", "ordinary", "device"  # kinds of memory
NCCL = "nccl"  # an external baseline, on devices
DEVICE_TYPES = ("float32", "float64")  # that a device adds
NO_BASELINES: Mapping = {}


class Buffers:
    """Memory for buffers: in host memory, shared by the ranks of a node if possible. Collective to make.

    device:    their device, as in ``--device``
    transport: transport of the first way: the ranks and their collectives
    memories:  the kinds of memory; training uses the first one
    others:    allocations of further kinds of memory by their names, each a function of the number of bytes
    """

    device = CPU
    memories: Sequence[str]

    def __init__(self, transport: Transport, others: Mapping[str, Callable[[int], Array]] = NO_BASELINES):
        self.transport = transport
        self._allocations: dict[str, Callable[[int], Array]] = {
            **({SHARED: partial(transport.allocate, dtype=np.uint8)} if _shares(transport) else {}),
            ORDINARY: partial(transport.scratch, dtype=np.uint8),
            **others,
        }
        self.memories = tuple(self._allocations)

    def ways_of(self, algorithm: str) -> tuple[str, ...]:
        return (NO_WAY,)

    def by(self, way: str) -> Transport:
        return self.transport

    def over(self, carrier: str, way: str) -> str:
        """Return the carrier of an all-reduce as rows name it. ``carrier``: its reduction's name for it."""
        return carrier

    def allocate(self, nbytes: int, memory: str | None = None) -> Array:
        """Return bytes, of the first kind of memory by default. Collective over the node."""
        return self._allocations[memory or self.memories[0]](nbytes)

    def typed(self, span, nbytes: int, numbers: NumberType):
        """Return the first bytes of a span as numbers."""
        return span[:nbytes].view(numbers.storage)

    def check_room(self, nbytes: int) -> None:
        """Raise UsageError if the memory has fewer than ``nbytes``. Collective."""
        check_memory(self.transport, nbytes)

    def describe(self) -> dict:
        """Return the header's entry: ``device``, None on a host. Collective."""
        return {"device": None}

    def host_of(self, span) -> np.ndarray:
        """Return an array to fill for :meth:`load`: the memory itself on a host."""
        return span

    def load(self, host: np.ndarray, span) -> None:
        """Copy the array of :meth:`host_of` into the span. It is there on return."""

    def read(self, span) -> np.ndarray:
        return span

    def clear(self, span) -> None:
        span[...] = 0

    def lacking(self, numbers: NumberType, op: str) -> str | None:
        """Return the reason why no algorithm here reduces such numbers; None if one does."""
        return "integers have no mean: use sum" if op == MEAN and numbers.integral else None

    def combining(self, numbers: NumberType, op: str) -> tuple[Callable, "Host | Ops"]:
        """Return (combine, device) for :func:`ringtrain.allreduce.catalogue.make_allreduce`."""
        return numbers.combine(op), HOST

    def check_native(self, numbers: NumberType, op: str) -> None:
        """Raise UsageError if the MPI cannot reduce such numbers. Collective."""
        check_native(self.transport, numbers, op)


def _shares(transport: Transport) -> bool:
    """Whether ranks share memory with others. Collective; the same on all ranks."""
    shares = transport.local_size > 1 and transport.peer_views(transport.allocate(1, np.uint8)) is not None
    return any(transport.gather_json(shares))


class DeviceBuffers(Buffers):
    """Buffers in the memory of this rank's device.

    runtime: the device's (:mod:`ringtrain.ops.cuda.runtime`)
    ops_of:  ops_of(dtype): its operations for numbers of that type
    ways:    transports by the names of their ways, of the same ranks
    stream:  for its own copies
    """

    device = CUDA
    memories = (OF_DEVICE,)

    def __init__(self, runtime: "CupyRuntime", ops_of: "Callable[[str], Ops]", ways: Mapping[str, Transport]):
        self.runtime, self.ways, self.stream = runtime, ways, runtime.stream()
        self.transport = next(iter(ways.values()))
        self._ops_of = cache(ops_of)  # each has a stream of its own, and all work on one buffer has one order

    def ways_of(self, algorithm: str) -> tuple[str, ...]:
        alone = algorithm in (NATIVE, AUTO, NCCL, MAPPED)
        return (NO_WAY,) if alone else tuple(self.ways)

    def by(self, way: str) -> Transport:
        return self.ways[way] if way else self.transport

    def over(self, carrier: str, way: str) -> str:
        first = way or next(iter(self.ways))
        return {"messages": first, "mapped": "ipc", "routed": f"ipc+{first}", NATIVE: "staged"}.get(carrier, carrier)

    def allocate(self, nbytes: int, memory: str | None = None) -> Array:
        return self.transport.allocate(nbytes, np.uint8)

    def typed(self, span, nbytes: int, numbers: NumberType):
        return self.runtime.view(span[:nbytes], numbers.storage)

    def check_room(self, nbytes: int) -> None:
        check_device_memory(self.transport, nbytes, self.runtime.memory()[0], self.runtime.facts.uuid)

    def describe(self) -> dict:
        facts = self.transport.gather_json([self.runtime.facts.name, self.runtime.facts.uuid])
        names, devices = ([each[i] for each in facts] for i in (0, 1))
        device = {"name": " | ".join(dict.fromkeys(names)), "devices": len(set(devices)), "ways": list(self.ways)}
        return {"device": device | {"apart": self.transport.why_not_shared}}

    def host_of(self, span) -> np.ndarray:
        return np.empty(span.shape, span.dtype)

    def load(self, host: np.ndarray, span) -> None:
        ops = self.ops(span.dtype)
        ops.upload(host, span)
        ops.synchronize()

    def read(self, span) -> np.ndarray:
        return self.ops(span.dtype).to_host(span)

    def clear(self, span) -> None:
        self.runtime.clear(span, self.stream)
        self.stream.synchronize()

    def lacking(self, numbers: NumberType, op: str) -> str | None:
        if numbers.name not in DEVICE_TYPES:
            return f"a device adds {' and '.join(DEVICE_TYPES)}, but this is {numbers.name}"
        return None if op == "sum" else f"a device all-reduces sums, but this is {op}"

    def combining(self, numbers: NumberType, op: str) -> tuple[Callable, "Ops"]:
        ops = self.ops(numbers.storage)
        return ops.add, ops

    def check_native(self, numbers: NumberType, op: str) -> None:
        """Accept all: any MPI adds the types that a device adds."""

    def ops(self, dtype) -> "Ops":
        return self._ops_of(np.dtype(dtype).name)
