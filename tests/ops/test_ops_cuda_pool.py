"""Pooling on the device: beside the reference, and what only it promises."""

import numpy as np
import pytest

from ringtrain.ops.cuda.pool import Pool
from ringtrain.ops.geometry import PoolGeometry
from tests.ops.cases import Call
from tests.ops.cuda_parts import CASES, TYPES, agree, compare, run_recorded
from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]
GEOMETRIES = [PoolGeometry(3, 2, 1, True), PoolGeometry(2, 2), PoolGeometry(3, 1, 1), PoolGeometry(2, 3, 1, True)]


@pytest.mark.parametrize(("types", "n"), CASES, ids=str)
def test_agrees_with_the_reference(types, n):
    compare(Pool, types, n)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("channels", [16, 264])
def test_agrees_where_channels_are_read_together(types, channels):
    ops, random = cuda_ops(*types), np.random.default_rng(2)
    x = random.standard_normal((2, 6, 5, channels)).astype(ops.dtype)
    for geometry in GEOMETRIES:
        y = random.standard_normal((2, geometry.output(6), geometry.output(5), channels)).astype(x.dtype)
        where = random.integers(0, geometry.kernel**2, y.shape).astype(np.uint8)
        rest = {"geometry": geometry}
        agree(ops, Call("max_pool", {"x_NHWC": x}, {"y_NPQC": y, "where_NPQC": where}, rest))
        agree(ops, Call("max_pool_back", {"dy_NPQC": y, "where_NPQC": where}, {"dx_NHWC": x}, rest))
        agree(ops, Call("avg_pool", {"x_NHWC": x}, {"y_NPQC": y}, rest))
        agree(ops, Call("avg_pool_back", {"dy_NPQC": y}, {"dx_NHWC": x}, rest))
    agree(ops, Call("global_avg_pool", {"x_NHWC": x}, {"y_NC": x[:, 0, 0]}))
    agree(ops, Call("global_avg_pool_back", {"dy_NC": x[:, 0, 0]}, {"dx_NHWC": x}))


@pytest.mark.parametrize("channels", [2, 8])
def test_the_first_of_equals_and_a_nan(channels):
    ops, x = cuda_ops(), np.ones((1, 4, 4, channels), np.float32)
    x[0, 1, 1, 0] = np.nan
    y, where = ops.empty((1, 2, 2, channels), "float32"), ops.empty((1, 2, 2, channels), "uint8")
    ops.max_pool(ops.from_host(x), y, where, PoolGeometry(2, 2))
    assert np.argwhere(np.isnan(ops.to_host(y))).tolist() == [[0, 0, 0, 0]]
    assert np.argwhere(ops.to_host(where)).tolist() == [[0, 0, 0, 0]] and ops.to_host(where)[0, 0, 0, 0] == 3


def test_a_slice_of_bytes_that_begins_anywhere():
    ops, random = cuda_ops(), np.random.default_rng(2)
    x = ops.from_host(random.standard_normal((1, 4, 4, 8)).astype(np.float32))
    y, memory = ops.empty((1, 2, 2, 8), "float32"), ops.empty((1 + 32,), "uint8")
    where = memory[1:].reshape((1, 2, 2, 8))
    dx = ops.empty(x.shape, "float32")
    ops.max_pool(x, y, where, PoolGeometry(2, 2))
    ops.max_pool_back(y, where, dx, PoolGeometry(2, 2))
    given, back = ops.to_host(x), ops.to_host(dx)
    assert ((back == given) | (back == 0)).all() and (back != 0).sum() == 32


def test_all_of_it_can_be_recorded():
    ops, geometry = cuda_ops(), PoolGeometry(3, 2, 1, True)
    x = ops.from_host(np.arange(2 * 5 * 5 * 8, dtype=np.float32).reshape(2, 5, 5, 8))
    y, where = (ops.empty((2, 3, 3, 8), kind) for kind in ("float32", "uint8"))
    mean, dx = ops.empty((2, 8), "float32"), ops.empty(x.shape, "float32")

    def run():
        ops.max_pool(x, y, where, geometry)
        ops.max_pool_back(y, where, dx, geometry)
        ops.avg_pool(x, y, geometry)
        ops.avg_pool_back(y, dx, geometry)
        ops.global_avg_pool(x, mean)
        ops.global_avg_pool_back(mean, dx)

    run_recorded(ops, run)
    assert np.isfinite(ops.to_host(dx)).all()
