"""The 16-bit types of gradients in messages, by name, made of one device's operations."""

from functools import partial

import numpy as np

from ringtrain.collectives.execution.reduction import WireFormat
from ringtrain.errors import UsageError, nearest
from ringtrain.ops.base import Ops
from ringtrain.ops.catalogue import make_ops

# Types of packed arrays; NumPy has no bfloat16, whose bits uint16 holds.
TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16)}
NONE = "none"
WIRES = (NONE, *TYPES)


def check_wire(name: str) -> None:
    if name not in WIRES:
        raise UsageError(f"unknown wire {name!r}: {nearest(name, WIRES)}")


def make_wire(name: str, ops: Ops) -> WireFormat | None:
    """Return the wire format; None for "none". Raises UsageError for another name."""
    check_wire(name)
    if name == NONE:
        return None
    return WireFormat(name, TYPES[name], ops.pack, ops.unpack, partial(ops.unpack, accumulate=True))


def host_wire(name: str) -> WireFormat | None:
    """Return :func:`make_wire` for arrays in host memory."""
    return None if name == NONE else make_wire(name, make_ops("cpu"))


def warm_up(wire: WireFormat, ops: Ops) -> None:
    """Run each operation once, on no elements: kernels compile before they are timed."""
    nothing, packed = ops.empty((0,), "float32"), ops.empty((0,), wire.dtype)
    wire.pack(nothing, packed)
    wire.unpack(packed, nothing)
    wire.add(packed, nothing)
