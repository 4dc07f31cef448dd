"""The placement of a pipeline's layers."""

from itertools import pairwise

import pytest

from ringtrain.exchange.model_parallel.layer_placement import describe, place_layers
from ringtrain.nn import spec

TEXT = """
input = { shape = [4, 4, 1] }
layers = [
  { name = "conv", kind = "Conv2D", channels = 2, kernel = 3, pad = 1 },
  { name = "flat", kind = "Flatten" },
  { name = "fc1", kind = "Linear", units = 16 },
  { name = "fc2", kind = "Linear", units = 8 },
  { name = "fc3", kind = "Linear", units = 10 },
]
"""


def graph_of(name):
    return spec.load_model(name).graph()


def test_the_table_of_alexnet():
    graph = graph_of("alexnet")
    routes = place_layers(graph, 6, 2)
    assert [route.ranks for route in routes] == [(0, 1, 2, 3), (4,), (5,)]
    assert [describe(route, graph, 4) for route in routes] == [
        "ranks 0, 1, 2, 3: conv1 to flat, 1.34 GFLOP an example, 8.904 MiB of weights, 36 KiB an example on",
        "rank 4: fc6 to drop6, 75.5 MFLOP an example, 144 MiB of weights, 16 KiB an example on",
        "rank 5: fc7 to fc8, 41.8 MFLOP an example, 79.64 MiB of weights, the loss",
    ]


@pytest.mark.parametrize(("size", "fc_ranks"), [(2, 1), (3, 1), (5, 1), (4, 2), (4, 3), (7, 3)])
def test_every_layer_is_on_some_rank_and_every_rank_has_layers(size, fc_ranks):
    graph = spec.parse_model(TEXT, "net").graph()
    routes = place_layers(graph, size, fc_ranks)
    assert [rank for route in routes for rank in route.ranks] == list(range(size))
    assert (routes[0].start, routes[-1].stop) == (0, len(graph.plan))
    assert all(one.start < one.stop == other.start for one, other in pairwise(routes))
    assert [len(route.ranks) for route in routes] == [size - fc_ranks, *[1] * fc_ranks]
