"""Every part of the operations on a GPU: beside the reference, and recorded."""

import pytest

from ringtrain.ops.cuda import activations, loss, norm, pool, sequences
from tests.ops.cases import is_large, prepare, wide_calls
from tests.ops.cuda_support import PARTS, TYPES, agree, calls_of, cuda_ops, needs_compiler, operations

pytestmark = [needs_compiler, pytest.mark.device]
NARROW = pool, norm, loss, activations, sequences  # of 16 bits too
CASES = [(part, types) for part in PARTS for types in (TYPES if part in NARROW else TYPES[:2])]
NUMBERS = "square_sum", "nonfinite"  # which are waited for


def calls_for(part, dtype, n):
    """Of convolutions those that fit one tile: test_ops_cuda_convolution.py has the others."""
    wide = [call for call in wide_calls(dtype) if n and call.operation in operations(part)]
    return wide + [call for call in calls_of((part,), dtype, n) if not is_large(call)]


@pytest.mark.parametrize("n", [5, 0])
@pytest.mark.parametrize(("part", "types"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_agrees_with_the_reference(part, types, n):
    ops = cuda_ops(*types)
    for call in calls_for(part, ops.dtype, n):
        agree(ops, call)


@pytest.mark.parametrize("part", PARTS)
def test_what_is_recorded_is_what_is_done_plainly(part):
    """Three times: as it is, recorded, which refuses allocations and waits, and from what was recorded."""
    ops, calls = cuda_ops(), [call for call in calls_for(part, "float32", 5) if call.operation not in NUMBERS]
    for number, call in enumerate(calls):
        (plain, wanted), (recorded, got) = prepare(ops, call), prepare(ops, call)
        for _ in range(3):
            plain()
            ops.segment(number, recorded)
        for name, x in wanted().items():
            assert got()[name].tobytes() == x.tobytes(), f"{call}: {name}"
    assert ops.describe().endswith(f"; {len(calls)} segments recorded") or not calls
