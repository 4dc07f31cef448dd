"""Local response normalisation on the device."""

import numpy as np
import pytest

from ringtrain.ops.cuda.response import Response
from tests.ops.cases import Call
from tests.ops.cuda_parts import CASES, TYPES, agree, compare, run_recorded
from tests.ops.cuda_support import cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


@pytest.mark.parametrize(("types", "n"), CASES, ids=str)
def test_agrees_with_the_reference(types, n):
    compare(Response, types, n)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("size", [3, 4])
def test_agrees_where_channels_are_read_together(types, size):
    ops, random, shape = cuda_ops(*types), np.random.default_rng(2), (2, 6, 5, 16)
    x, y, dy = (random.standard_normal(shape).astype(ops.dtype) for _ in range(3))
    scale, rest = np.abs(x) + 1, {"size": size, "alpha": 0.3, "beta": 0.75}
    agree(ops, Call("lrn_within", {"x_NHWC": x}, {"y_NHWC": y, "scale_NHWC": scale}, rest))
    back = {"x_NHWC": x, "y_NHWC": y, "scale_NHWC": scale, "dy_NHWC": dy}
    agree(ops, Call("lrn_within_back", back, {"dx_NHWC": x}, rest))


def test_all_of_it_can_be_recorded():
    ops, shape = cuda_ops(), (2, 3, 3, 8)
    x = ops.from_host(np.linspace(-1, 1, 144, dtype=np.float32).reshape(shape))
    y, scale, dx = (ops.empty(shape, "float32") for _ in range(3))

    def run():
        for name, more in (("lrn_across", (2.0,)), ("lrn_within", ())):
            getattr(ops, name)(x, y, scale, 3, 0.1, 0.75, *more)
            getattr(ops, f"{name}_back")(x, y, scale, x, dx, 3, 0.1, 0.75)

    run_recorded(ops, run)
    assert np.isfinite(ops.to_host(dx)).all()
