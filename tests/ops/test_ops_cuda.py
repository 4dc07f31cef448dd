"""The operations on a GPU against the reference, over a device of the host that runs the same kernels."""

import numpy as np
import pytest

from ringtrain.ops.base import Ops
from ringtrain.ops.cuda import CudaOps
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cases import Call
from tests.ops.cuda_support import BACKENDS, COMPILED, cuda_ops, needs_compiler, perform

pytestmark = needs_compiler


@pytest.mark.parametrize("make", COMPILED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dropout_is_the_references_bit_for_bit_wherever_an_example_is(make, dtype):
    compiled, reference = make(dtype), ReferenceOps(dtype)
    x = np.random.default_rng(1).standard_normal((6, 400)).astype(dtype)
    examples, key = np.array([3, 9, 10**12, 0, -5, 7]), np.array([2**64 - 3], np.uint64)

    def dropped(ops, rows, key=key, layer=2**63 + 5):
        inputs, rest = {"x_ND": x[rows], "examples_N": examples[rows], "key_1": key}, {"layer": layer, "rate": 0.4}
        return perform(ops, Call("dropout", inputs, {"y_ND": x[rows]}, rest))["y_ND"]

    whole = dropped(compiled, slice(0, 6))
    assert whole.tobytes() == dropped(reference, slice(0, 6)).tobytes()
    assert dropped(compiled, slice(2, 5)).tobytes() == whole[2:5].tobytes()
    assert dropped(compiled, slice(0, 6), key + np.uint64(1)).tobytes() != whole.tobytes()
    assert dropped(compiled, slice(0, 6), layer=4).tobytes() != whole.tobytes()


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("widths", [(3, 1, 4), (8, 4, 12), (1, 1), (5,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_concat_and_back(make, dtype, widths):
    ops = make(dtype)
    parts = [np.random.default_rng(width).standard_normal((2, 3, width)).astype(dtype) for width in widths]
    y = ops.empty((2, 3, sum(widths)))
    ops.concat([ops.from_host(part) for part in parts], y)
    assert ops.to_host(y).tolist() == np.concatenate(parts, axis=-1).tolist()
    cut = [ops.empty(part.shape) for part in parts]
    ops.concat_back(y, cut)
    assert all(ops.to_host(got).tolist() == part.tolist() for got, part in zip(cut, parts, strict=True))


@pytest.mark.device
@pytest.mark.parametrize("start, stop", [(0, 1000), (1, 1000), (3, 5), (4, 999), (2, 2)])
def test_slices_that_begin_anywhere(start, stop):
    """Vectors of 16 bytes are only for memory that is aligned so."""
    ops, host = cuda_ops(), np.arange(1000, dtype=np.float32) - 300
    x, y = ops.from_host(host), ops.from_host(host)
    ops.add(x[start:stop], x[start:stop], y[start:stop])
    ops.relu(x[start:stop], x[start:stop])
    ops.fill(y[:start], 0.5)
    wanted, clipped = host.copy(), host.copy()
    wanted[start:stop] *= 2
    wanted[:start], clipped[start:stop] = 0.5, np.maximum(host[start:stop], 0)
    assert ops.to_host(y).tolist() == wanted.tolist() and ops.to_host(x).tolist() == clipped.tolist()


@pytest.mark.device
@pytest.mark.parametrize("dtype, value", [("uint8", 7), ("uint16", 515), ("int32", -2), ("float64", 0.3), ("int64", 9)])
@pytest.mark.parametrize("start", [0, 1, 5])
def test_fill_of_any_type(dtype, value, start):
    ops, host = cuda_ops(), np.zeros(100, dtype)
    x = ops.from_host(host)
    ops.fill(x[start:97], value)
    host[start:97] = value
    assert ops.to_host(x).tolist() == host.tolist()


@pytest.mark.parametrize("make", BACKENDS)
def test_nothing_becomes_of_nan(make):
    ops, x = make("float32"), np.array([np.nan, -1, 0, 2, -np.inf, np.inf], np.float32)
    assert ops.nonfinite(ops.from_host(x)) == 3
    y = ops.from_host(x)
    ops.relu(y, y)
    np.testing.assert_array_equal(ops.to_host(y), np.maximum(x, 0))
    ops.add(y, y, y, relu=True)
    assert np.isnan(ops.to_host(y)[0]) and ops.nonfinite(y) == 2
    assert np.isnan(ops.square_sum(y)) and ops.square_sum(ops.from_host(x[1:4])) == 5


@pytest.mark.device
@pytest.mark.parametrize("count", [1, 255, 2048, 2049, 300_001])
def test_a_sum_of_any_length(count):
    ops, x = cuda_ops("float64"), np.random.default_rng(count).integers(-3, 4, count).astype(np.float64)
    assert ops.square_sum(ops.from_host(x)) == np.square(x).sum()  # whole numbers: exact


@pytest.mark.device
def test_copies_between_types():
    ops, host = cuda_ops(), np.arange(-20, 21) / 7
    wide = "float32", "float64"
    for source, wanted in (wide, wide[::-1], ("float16", "float32"), ("float32", "float16"), ("int32", "int32")):
        y = ops.empty((41,), wanted)
        ops.copy(ops.from_host(host.astype(source)), y)
        assert ops.to_host(y).tolist() == host.astype(source).astype(wanted).tolist()


def test_the_device_is_described():
    ops = cuda_ops(runtime=HostRuntime())
    assert ops.describe() == "host, float32, CUDA 13.0 (driver 13.0)"
    assert (ops.name, ops.records, ops.compile_stats()) == ("cuda", True, (0, 0))
    ops.threads(3)
    ops.scale(ops.zeros((3,)), 2)
    assert sum(ops.compile_stats()) == 1
    assert issubclass(CudaOps, Ops)
