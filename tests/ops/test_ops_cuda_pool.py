"""Pooling on the device: beside the reference, and what only it promises."""

import numpy as np
import pytest

from ringtrain.ops.geometry import PoolGeometry
from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


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
    image, back = ops.to_host(x), ops.to_host(dx)
    assert ((back == image) | (back == 0)).all() and (back != 0).sum() == 32
