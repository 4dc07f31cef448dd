"""Local response normalisation on the device."""

import numpy as np
import pytest

from ringtrain.ops.cuda.response import Response
from tests.ops.cases import Call
from tests.ops.cuda_parts import TYPES, Part, agree, compare, needs_compiler, replayed

pytestmark = needs_compiler
OPERATIONS = {"lrn_across", "lrn_across_back", "lrn_within", "lrn_within_back"}


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_agrees_with_the_reference(types):
    assert compare(Part(Response, *types), OPERATIONS, 5) == OPERATIONS


def test_agrees_with_the_reference_where_there_is_no_example():
    assert compare(Part(Response), OPERATIONS, 0) == OPERATIONS


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("size", [3, 4])
def test_agrees_where_channels_are_read_together(types, size):
    part, random, shape = Part(Response, *types), np.random.default_rng(2), (2, 6, 5, 16)
    x, y, dy = (random.standard_normal(shape).astype(part.device.real) for _ in range(3))
    scale, rest = np.abs(x) + 1, {"size": size, "alpha": 0.3, "beta": 0.75}
    agree(part, Call("lrn_within", {"x_NHWC": x}, {"y_NHWC": y, "scale_NHWC": scale}, rest))
    back = {"x_NHWC": x, "y_NHWC": y, "scale_NHWC": scale, "dy_NHWC": dy}
    agree(part, Call("lrn_within_back", back, {"dx_NHWC": x}, rest))


def test_all_of_it_can_be_recorded():
    part, shape = Part(Response), (2, 3, 3, 8)
    x = part.from_host(np.linspace(-1, 1, 144, dtype=np.float32).reshape(shape))
    y, scale, dx = (part.runtime.empty(shape, "float32") for _ in range(3))

    def run():
        for name, more in (("lrn_across", (2.0,)), ("lrn_within", ())):
            getattr(part, name)(x, y, scale, 3, 0.1, 0.75, *more)
            getattr(part, f"{name}_back")(x, y, scale, x, dx, 3, 0.1, 0.75)

    replayed(part, run)
    assert np.isfinite(part.to_host(dx)).all()
