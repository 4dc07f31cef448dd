"""Pooling on the device: beside the reference, and what only it promises."""

import numpy as np
import pytest

from ringtrain.ops.cuda.pool import Pool
from ringtrain.ops.geometry import PoolGeometry
from tests.ops.cases import Call
from tests.ops.cuda_parts import TYPES, Part, agree, compare, needs_compiler, replayed

pytestmark = needs_compiler
OPERATIONS = {
    "max_pool", "max_pool_back", "avg_pool", "avg_pool_back", "global_avg_pool", "global_avg_pool_back",
}  # fmt: skip
GEOMETRIES = [PoolGeometry(3, 2, 1, True), PoolGeometry(2, 2), PoolGeometry(3, 1, 1), PoolGeometry(2, 3, 1, True)]


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_agrees_with_the_reference(types):
    assert compare(Part(Pool, *types), OPERATIONS, 5) == OPERATIONS


def test_agrees_with_the_reference_where_there_is_no_example():
    assert compare(Part(Pool), OPERATIONS, 0) == OPERATIONS


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("channels", [16, 264])
def test_agrees_where_channels_are_read_together(types, channels):
    part, random = Part(Pool, *types), np.random.default_rng(2)
    x = random.standard_normal((2, 6, 5, channels)).astype(part.device.real)
    for geometry in GEOMETRIES:
        y = random.standard_normal((2, geometry.output(6), geometry.output(5), channels)).astype(x.dtype)
        where = random.integers(0, geometry.kernel**2, y.shape).astype(np.uint8)
        rest = {"geometry": geometry}
        agree(part, Call("max_pool", {"x_NHWC": x}, {"y_NPQC": y, "where_NPQC": where}, rest))
        agree(part, Call("max_pool_back", {"dy_NPQC": y, "where_NPQC": where}, {"dx_NHWC": x}, rest))
        agree(part, Call("avg_pool", {"x_NHWC": x}, {"y_NPQC": y}, rest))
        agree(part, Call("avg_pool_back", {"dy_NPQC": y}, {"dx_NHWC": x}, rest))
    agree(part, Call("global_avg_pool", {"x_NHWC": x}, {"y_NC": x[:, 0, 0]}))
    agree(part, Call("global_avg_pool_back", {"dy_NC": x[:, 0, 0]}, {"dx_NHWC": x}))


@pytest.mark.parametrize("channels", [2, 8])
def test_the_first_of_equals_and_a_nan(channels):
    part, x = Part(Pool), np.ones((1, 4, 4, channels), np.float32)
    x[0, 1, 1, 0] = np.nan
    y, where = part.runtime.empty((1, 2, 2, channels), "float32"), part.runtime.empty((1, 2, 2, channels), "uint8")
    part.max_pool(part.from_host(x), y, where, PoolGeometry(2, 2))
    assert np.argwhere(np.isnan(part.to_host(y))).tolist() == [[0, 0, 0, 0]]
    assert np.argwhere(part.to_host(where)).tolist() == [[0, 0, 0, 0]] and part.to_host(where)[0, 0, 0, 0] == 3


def test_a_slice_of_bytes_that_begins_anywhere():
    part, random = Part(Pool), np.random.default_rng(2)
    x = part.from_host(random.standard_normal((1, 4, 4, 8)).astype(np.float32))
    y, memory = part.runtime.empty((1, 2, 2, 8), "float32"), part.runtime.empty((1 + 32,), "uint8")
    where = memory[1:].reshape((1, 2, 2, 8))
    dx = part.runtime.empty(x.shape, "float32")
    part.max_pool(x, y, where, PoolGeometry(2, 2))
    part.max_pool_back(y, where, dx, PoolGeometry(2, 2))
    given, back = part.to_host(x), part.to_host(dx)
    assert ((back == given) | (back == 0)).all() and (back != 0).sum() == 32


def test_all_of_it_can_be_recorded():
    part, geometry = Part(Pool), PoolGeometry(3, 2, 1, True)
    x = part.from_host(np.arange(2 * 5 * 5 * 8, dtype=np.float32).reshape(2, 5, 5, 8))
    y, where = (part.runtime.empty((2, 3, 3, 8), kind) for kind in ("float32", "uint8"))
    mean, dx = part.runtime.empty((2, 8), "float32"), part.runtime.empty(x.shape, "float32")

    def run():
        part.max_pool(x, y, where, geometry)
        part.max_pool_back(y, where, dx, geometry)
        part.avg_pool(x, y, geometry)
        part.avg_pool_back(y, dx, geometry)
        part.global_avg_pool(x, mean)
        part.global_avg_pool_back(mean, dx)

    replayed(part, run)
    assert np.isfinite(part.to_host(dx)).all()
