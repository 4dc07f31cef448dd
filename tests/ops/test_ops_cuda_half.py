"""Activations of 16 bits: each result is the reference's of the same numbers, rounded once."""

import numpy as np
import pytest

from ringtrain.ops.cuda import elementwise, examples
from ringtrain.ops.reference import ReferenceOps
from tests.ops.cases import Call
from tests.ops.cuda_support import calls_of, cuda_ops, needs_compiler, perform

pytestmark = [needs_compiler, pytest.mark.device]
# Half a unit in the last place, relative, and one rounding of float32 more.
ROUNDING = {"float16": 2**-11 + 2**-20, "bfloat16": 2**-8 + 2**-20}
OF_WEIGHTS = {"mean_HWC", "scale_C", "images_NHWC"}  # of float32 whatever the activations are


@pytest.fixture(params=["float16", "bfloat16"])
def precision(request):
    return request.param


def rounded(arrays, dtype):
    """The arrays of float32, but those of weights, in a type of 16 bits."""
    return {name: x.astype(dtype) if _is(x, "float32") and name not in OF_WEIGHTS else x for name, x in arrays.items()}


def widened(arrays):
    """The same numbers in float32 again."""
    return {name: x.astype(np.float32) if _is(x, *ROUNDING) else x for name, x in arrays.items()}


def _is(x, *names):
    return isinstance(x, np.ndarray) and x.dtype.name in names


@pytest.mark.parametrize("n", [5, 0])
def test_each_result_is_rounded_once(precision, n):
    cuda, reference = cuda_ops("float32", precision), ReferenceOps("float32")
    calls = calls_of((elementwise, examples), "float32", n)
    assert calls
    for call in calls:
        inputs, outputs = rounded(call.inputs, cuda.active), rounded(call.outputs, cuda.active)
        short = Call(call.operation, inputs, outputs, call.rest)
        exact = Call(call.operation, widened(inputs), widened(outputs), call.rest)
        got, wanted = perform(cuda, short), perform(reference, exact)
        for name, x in wanted.items():
            assert got[name].dtype == cuda.active
            error = np.abs(got[name].astype(np.float64) - x)
            assert (error <= ROUNDING[precision] * np.abs(x) + 1e-7).all(), f"{call}: {name}"


def test_statistics_and_weights_stay_wide(precision):
    ops = cuda_ops("float32", precision)
    assert (ops.dtype, ops.active.name, ops.empty((2,)).dtype) == ("float32", precision, "float32")
    wide, narrow = ops.from_host(np.array([1, 2.5, -3e-3], np.float32)), ops.empty((3,), ops.active)
    ops.copy(wide, narrow)
    ops.copy(narrow, wide)
    assert ops.to_host(wide).tolist() == ops.to_host(narrow).astype(np.float32).tolist()
    assert ops.square_sum(narrow) == np.square(ops.to_host(narrow).astype(np.float64)).sum()


def test_values_of_16_bits_fill_and_join(precision):
    ops = cuda_ops("float32", precision)
    x, y = ops.empty((3, 5), ops.active), ops.empty((3, 8), ops.active)
    z = ops.empty((3, 3), ops.active)
    ops.fill(x, 0.1)
    ops.fill(z, 2)
    ops.concat([x, z], y)
    tenth = float(np.array(0.1).astype(ops.active))
    assert ops.to_host(y).astype(float).tolist() == [[tenth] * 5 + [2] * 3] * 3
