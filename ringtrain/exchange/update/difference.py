"""The difference of two arrays, in operations that every device has."""

from ringtrain.arrays import Array
from ringtrain.ops.base import Ops


def subtract(ops: Ops, a: Array, b: Array, out: Array) -> None:
    """out = a - b; ``out`` is not ``a``."""
    ops.copy(b, out)
    ops.scale(out, -1.0)
    ops.add(a, out, out)
