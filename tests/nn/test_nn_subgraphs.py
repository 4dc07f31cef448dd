"""A network cut into parts: where that is possible, their arithmetic, and that parts compute what the whole does."""

from itertools import pairwise

import numpy as np
import pytest
from nn_support import bound_arena, make_pass

from ringtrain.nn import spec, subgraphs
from ringtrain.ops.reference import ReferenceOps

TEXT = """
input = { shape = [4, 4, 2] }
layers = [
  { name = "conv", kind = "Conv2D", channels = 3, kernel = 3, pad = 1 },
  { name = "relu", kind = "ReLU" },
  { name = "flat", kind = "Flatten" },
  { name = "a", kind = "Linear", units = 8 },
  { name = "arelu", kind = "ReLU" },
  { name = "b", kind = "Linear", units = 8 },
  { name = "b2", kind = "Linear", units = 8 },
  { name = "sum", kind = "Add", inputs = ["arelu", "b2"] },
  { name = "drop", kind = "Dropout", rate = 0.5 },
  { name = "c", kind = "Linear", units = 5 },
]
"""


def names(graph, places):
    return [graph.plan[place].name for place in places]


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("alexnet", ["fc6", "fc7", "fc8"]),
        ("cifar10_quick", ["ip1", "ip2"]),
        ("mlp", ["fc1", "fc2", "fc3"]),
        ("resnet20", ["fc"]),
    ],
)
def test_where_parts_may_begin(name, starts):
    graph = spec.load_model(name).graph()
    assert names(graph, subgraphs.fc_starts(graph)) == starts


def test_no_part_begins_where_two_arrays_cross():
    graph = spec.parse_model(TEXT, "net").graph()
    assert names(graph, subgraphs.fc_starts(graph)) == ["a", "b", "c"]
    at = [node.name for node in graph.plan].index
    assert subgraphs.crossing_output(graph, at("b")) == "a"  # its ReLU is folded into it, and both readers read that
    assert subgraphs.crossing_output(graph, at("b2")) is None
    assert subgraphs.crossing_output(graph, 0) == "input"
    images = TEXT[: TEXT.index('  { name = "flat"')] + "]"
    assert subgraphs.fc_starts(spec.parse_model(images, "net").graph()) == []


def test_the_arithmetic_of_parts():
    """fc6 of alexnet, with the dropout behind it, is 75 MFLOP, fc7 34, fc8 8."""
    graph = spec.load_model("alexnet").graph()
    starts = subgraphs.fc_starts(graph)
    costs = [subgraphs.subgraph_flops(graph, a, b) for a, b in zip(starts, [*starts[1:], len(graph.plan)], strict=True)]
    assert costs[0] == 4096 * (2 * 9216 + 1) + 4096 and costs[0] > costs[1] > costs[2]


def test_parts_one_after_another_are_the_whole():
    graph, ops = spec.parse_model(TEXT, "net").graph(), ReferenceOps("float64")
    arena = bound_arena(graph, ops, 1)
    edges = [0, *subgraphs.fc_starts(graph), len(graph.plan)]
    parts = [subgraphs.subgraph(graph, a, b) for a, b in pairwise(edges)]
    for part in parts:
        part.bind(arena)
    rng = np.random.default_rng(2)
    x, dy = rng.standard_normal((3, 4, 4, 2)), rng.standard_normal((3, 5))
    ctx = make_pass(ops, 3)
    want, tapes = graph.forward(ctx, x)
    whole = [span.name for span in graph.backward(ctx, dy.copy(), tapes)]
    grads = arena.grads.copy()
    assert tapes.dx is None  # nobody wants that of images

    arena.grads[...] = np.nan
    passes, flow = [], x
    for part in parts:
        ctx = make_pass(ops, 3)
        flow, tapes = part.forward(ctx, flow)
        passes.append((part, ctx, tapes))
    np.testing.assert_array_equal(flow, want)
    back, yielded = dy.copy(), []
    for part, ctx, tapes in reversed(passes):
        yielded += [span.name for span in part.backward(ctx, back, tapes)]
        back = tapes.dx
    assert yielded == whole and back is None
    for span in arena.spans:
        np.testing.assert_array_equal(arena.grad(span).reshape(-1), grads[span.start : span.start + span.count])
