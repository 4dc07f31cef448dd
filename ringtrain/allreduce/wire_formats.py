"""The 16-bit types that gradients may travel in, by name, as one device's operations make them."""

from functools import partial

import numpy as np

from ringtrain.allreduce import texts as texts
from ringtrain.collectives.execution.reduction import WireFormat
from ringtrain.errors import UsageError, nearest
from ringtrain.ops.base import Ops
from ringtrain.ops.catalogue import make_ops

# What is packed is kept as these; NumPy has no bfloat16, whose bits uint16 holds.
TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16)}
NONE = "none"
WIRES = (NONE, *TYPES)


def check_wire(name: str) -> None:
    """Raises UsageError for a name that is not there."""
    if name not in WIRES:
        raise UsageError(texts.UNKNOWN_WIRE(name=name, hint=nearest(name, WIRES)))


def make_wire(name: str, ops: Ops) -> WireFormat | None:
    """None for "none". Raises UsageError for another name."""
    check_wire(name)
    if name == NONE:
        return None
    return WireFormat(name, TYPES[name], ops.pack, ops.unpack, partial(ops.unpack, accumulate=True))


def compiled_wire(name: str) -> WireFormat | None:
    """As :func:`make_wire`, for arrays in host memory, ready to be timed."""
    if name == NONE:
        return None
    ops = make_ops("cpu")
    wire = make_wire(name, ops)
    rehearse(wire, ops)
    return wire


def rehearse(wire: WireFormat, ops: Ops) -> None:
    """Run all it does once, on no elements: kernels compile before they are timed."""
    nothing, packed = ops.empty((0,), "float32"), ops.empty((0,), wire.dtype)
    wire.pack(nothing, packed)
    wire.unpack(packed, nothing)
    wire.add(packed, nothing)
