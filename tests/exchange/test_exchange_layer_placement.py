"""The routing table of a pipeline, and tables that are wrong."""

from dataclasses import replace

import pytest

from ringtrain.errors import ConfigError
from ringtrain.exchange import texts
from ringtrain.exchange.model_parallel.layer_placement import LayerPlacement, check, make_routing, tell
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
    routes = make_routing(graph, 6, 2)
    check(routes, graph, 6)
    assert [route.ranks for route in routes] == [(0, 1, 2, 3), (4,), (5,)]
    assert tell(routes, graph, 4) == [
        "ranks 0, 1, 2, 3: conv1 to flat, 1.34 GFLOP an example, 8.904 MiB of weights, 36 KiB an example on",
        "rank 4: fc6 to drop6, 75.5 MFLOP an example, 144 MiB of weights, 16 KiB an example on",
        "rank 5: fc7 to fc8, 41.8 MFLOP an example, 79.64 MiB of weights, the loss",
    ]


@pytest.mark.parametrize(("size", "fc_ranks"), [(2, 1), (3, 1), (5, 1), (4, 2), (4, 3), (7, 3)])
def test_every_table_that_is_made_passes(size, fc_ranks):
    graph = spec.parse_model(TEXT, "net").graph()
    routes = make_routing(graph, size, fc_ranks)
    check(routes, graph, size)
    assert [len(route.ranks) for route in routes] == [size - fc_ranks, *[1] * fc_ranks]


MUTANTS = {
    "a gap": (lambda a, b, c: [a, replace(b, start=b.start + 1), c], texts.LAYER_ON_NO_RANK.pattern(layer="fc1")),
    "a gap in front": (lambda a, b, c: [replace(a, start=1), b, c], texts.LAYER_ON_NO_RANK.pattern(layer="conv")),
    "an overlap": (
        lambda a, b, c: [replace(a, stop=a.stop + 1), b, c],
        texts.OUT_OF_ORDER.pattern(ranks="rank 2", layer="fc1"),
    ),
    "the wrong order": (lambda a, b, c: [a, c, b], texts.LAYER_ON_NO_RANK.pattern(layer="fc1")),
    "images behind": (lambda a, b, c: [b, a, c], texts.LAYER_ON_NO_RANK.pattern(layer="conv")),
    "no layers": (
        lambda a, b, c: [a, replace(b, stop=b.start), c],
        texts.OUT_OF_ORDER.pattern(ranks="rank 2", layer="fc1"),
    ),
    "no end": (lambda a, b, c: [a, b], texts.ENDS_EARLY.pattern(stop=3, count=5)),
    "layers that are not": (
        lambda a, b, c: [a, b, replace(c, stop=c.stop + 1)],
        texts.ENDS_EARLY.pattern(stop=6, count=5),
    ),
    "a rank twice": (lambda a, b, c: [a, b, replace(c, ranks=(2,))], texts.NOT_EACH_ONCE.pattern(ranks=[0, 1, 2, 2])),
    "a rank without": (
        lambda a, b, c: [replace(a, ranks=(0,)), b, c],
        texts.NOT_EACH_ONCE.pattern(ranks=[0, 2, 3], last=3),
    ),
    "ranks out of order": (
        lambda a, b, c: [a, replace(b, ranks=(3,)), replace(c, ranks=(2,))],
        texts.NOT_EACH_ONCE.pattern(ranks=[0, 1, 3, 2]),
    ),
    "one part twice": (
        lambda a, b, c: [replace(a, ranks=(0,)), replace(b, ranks=(1, 2)), c],
        texts.SHARED_FC_PART.pattern(ranks="ranks 1, 2"),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_table_that_is_wrong_is_told(mutant):
    graph = spec.parse_model(TEXT, "net").graph()
    change, message = MUTANTS[mutant]
    with pytest.raises(ConfigError, match=message):
        check(change(*make_routing(graph, 4, 2)), graph, 4)


def test_a_table_that_cuts_where_two_arrays_cross():
    graph = graph_of("resnet20")
    with pytest.raises(ConfigError, match=texts.SEVERAL_ARRAYS.pattern()):
        check([LayerPlacement((0,), 0, 3), LayerPlacement((1,), 3, len(graph.plan))], graph, 2)
