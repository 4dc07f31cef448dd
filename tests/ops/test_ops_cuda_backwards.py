"""Results do not depend on which warp of a block is ahead of which: a barrier that is missing is seen."""

import numpy as np
import pytest

from ringtrain.ops.cuda import exchange, loss
from ringtrain.ops.pairs import pair_bytes
from tests.ops.cases import Call
from tests.ops.cuda_support import PARTS, calls_of, cuda_ops, needs_compiler, perform

pytestmark = [needs_compiler, pytest.mark.device]


def largest_calls(part):
    """The one with the most elements of each operation, which has the most warps, and :func:`more_calls`."""
    largest = {}
    for call in calls_of((part,), "float32", 5):
        if elements(call) > elements(largest.get(call.operation)):
            largest[call.operation] = call
    return [*largest.values(), *more_calls(part)]


def more_calls(part):
    """A loss of many classes, and so many elements that a block goes over its part in two steps."""
    random = np.random.default_rng(0)
    if part is loss:
        x, labels = random.standard_normal((3, 1000)).astype(np.float32), np.arange(3, dtype=np.int32)
        outputs = {"dx_NK": x, "totals_3": np.ones(3)}
        yield Call("softmax_cross_entropy", {"x_NK": x, "labels_N": labels}, outputs, {"scale": 1.0})
    if part is exchange:
        x = np.round(random.standard_normal(40_000) * 4).astype(np.float32)
        pairs = np.zeros(pair_bytes(9000, 4), np.uint8)
        yield Call("take_largest", {}, {"x": x, "pairs": pairs}, {"k": 9000})


def elements(call):
    return 0 if call is None else sum(np.size(x) for x in (*call.inputs.values(), *call.outputs.values()))


@pytest.mark.parametrize("part", PARTS)
def test_either_order_of_warps_gives_the_same_bits(part, monkeypatch):
    ops = cuda_ops()
    for call in largest_calls(part):
        forwards = perform(ops, call)
        with monkeypatch.context() as changed:
            changed.setenv("CUDA_SHIM_BACKWARDS", "1")
            backwards = perform(ops, call)
        assert all(forwards[name].tobytes() == backwards[name].tobytes() for name in forwards), str(call)
