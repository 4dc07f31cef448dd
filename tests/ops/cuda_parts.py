"""Operations of a GPU beside the reference, with activations of any type, and recorded."""

import numpy as np

from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import Call
from tests.ops.cuda_support import calls_of, cuda_ops, perform

# Of the largest element; of 16 bits: one rounding.
TOLERANCE = {"float32": 5e-6, "float64": 1e-13, "float16": 5e-4, "bfloat16": 4e-3}
ACTIVE = ("x_N", "y_N", "dx_N", "dy_N")  # how names of activations and their gradients begin
TYPES = [("float32", "float32"), ("float64", "float32"), ("float32", "bfloat16"), ("float32", "float16")]
CASES = [(TYPES[0], 0), *((types, 5) for types in TYPES)]  # and how many examples


def compare(part, types, n: int) -> None:
    """Every case of the part's operations, on n examples, beside the reference. ``types``: one of TYPES."""
    ops = cuda_ops(*types)
    for call in calls_of((part,), ops.dtype, n):
        agree(ops, call)


def agree(ops, call: Call) -> None:
    call = with_active(call, ops.active)
    got, wanted = perform(ops, call), perform(ReferenceOps(ops.dtype), with_active(call, ops.dtype))
    assert got.keys() == wanted.keys()
    for name in wanted:
        dtype = ops.active if name.startswith(ACTIVE) else ops.dtype
        assert_close(got[name], wanted[name], TOLERANCE[dtype.name], f"{call}: {name}")


def with_active(call: Call, dtype) -> Call:
    """The same call, activations converted."""

    def converted(arrays):
        return {name: x.astype(dtype) if is_active(name, x) else x for name, x in arrays.items()}

    return Call(call.operation, converted(call.inputs), converted(call.outputs), call.rest)


def is_active(name, x):
    return isinstance(x, np.ndarray) and name.startswith(ACTIVE)


def assert_close(got, wanted, tolerance, what):
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    assert (np.isnan(got) == np.isnan(wanted)).all(), what
    if wanted.size:
        error = np.nanmax(np.abs(got - wanted)) / max(1e-30, np.nanmax(np.abs(wanted)))
        assert error <= tolerance, f"{what}: {error}"


def run_recorded(ops, run) -> None:
    """Three times: as it is, recorded, which refuses allocations and waits, and from what was recorded."""
    for _ in range(3):
        ops.segment("all of it", run)
    assert ops.describe().endswith("; 1 segments recorded")
