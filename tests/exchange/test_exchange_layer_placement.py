"""Which ranks hold which layers and columns: the cheapest division, its limits, the table for people."""

import random
from itertools import combinations, pairwise, product
from operator import mul

import pytest

from ringtrain.errors import ConfigError
from ringtrain.exchange.model_parallel.layer_placement import (
    EXCHANGE_FLOPS,
    LayerPlacement,
    cheapest_parts,
    describe,
    place_layers,
    rank_cost,
)
from ringtrain.nn import spec
from tests.says import says


def graph_of(name):
    return spec.load_model(name).graph()


def net_of(*layers):
    """After a convolution: a is Linear(6)."""
    before = (
        '{ name = "conv", kind = "Conv2D", channels = 2, kernel = 3, pad = 1 }',
        '{ name = "flat", kind = "Flatten" }',
        '{ name = "a", kind = "Linear", units = 6 }',
    )
    layers = ",\n".join((*before, *layers))
    return spec.parse_model(f"input = {{ shape = [4, 4, 1] }}\nlayers = [{layers}]", "net").graph()


B, C = '{ name = "b", kind = "Linear", units = 4 }', '{ name = "c", kind = "Linear", units = 5 }'
BETWEEN = ('{ name = "drop", kind = "Dropout", rate = 0.5 }', '{ name = "relu", kind = "ReLU" }')


def parts_of(graph, fc_ranks):
    """ "fc6 to drop6": 2 for each part"""
    placements = place_layers(graph, fc_ranks + 2, fc_ranks)[1:]
    return {f"{graph.plan[p.start].name} to {graph.plan[p.stop - 1].name}": len(p.ranks) for p in placements}


# ── the cheapest division ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("model", "fc_ranks", "parts"),
    [
        ("alexnet", 1, {"fc6 to fc8": 1}),
        ("alexnet", 2, {"fc6 to fc8": 2}),
        ("alexnet", 3, {"fc6 to drop6": 2, "fc7 to fc8": 1}),
        ("alexnet", 4, {"fc6 to fc8": 4}),
        ("alexnet", 8, {"fc6 to drop6": 5, "fc7 to drop7": 2, "fc8 to fc8": 1}),
        ("lenet", 1, {"ip1 to ip2": 1}),
        ("lenet", 2, {"ip1 to ip1": 1, "ip2 to ip2": 1}),
        ("lenet", 3, {"ip1 to ip1": 2, "ip2 to ip2": 1}),
        ("cifar10_full", 2, {"ip1 to ip1": 2}),
        ("cifar10_full", 10, {"ip1 to ip1": 10}),
    ],
)
def test_the_parts_of_known_networks(model, fc_ranks, parts):
    assert parts_of(graph_of(model), fc_ranks) == parts


def test_the_cost_of_a_rank_of_alexnet():
    """By hand: 3 · 2 · D · K of each layer, its biases and dropout; half of 2 · 9216 + 2 · (4096 + 4096) + 2 · 1000 / 2
    numbers. Why four ranks divide all layers together: fc6 on 2 costs more than a quarter of all."""
    graph = graph_of("alexnet")
    six, seven, eight = (i for i, node in enumerate(graph.plan) if node.name in ("fc6", "fc7", "fc8"))
    flops = 4096 * (2 * 9216 + 1) + 4096 + 4096 * (2 * 4096 + 1) + 4096 + 1000 * (2 * 4096 + 1)
    assert rank_cost(graph, six, eight + 1, 1) == 3 * flops
    sent = (2 * 9216 + 2 * 8192 + 1000) / 2
    assert rank_cost(graph, six, eight + 1, 2) == 3 * flops / 2 + EXCHANGE_FLOPS * sent
    assert rank_cost(graph, six, eight + 1, 4) < rank_cost(graph, six, seven, 2) < rank_cost(graph, seven, eight + 1, 1)


def divisions(costs, ranks):
    """Every division: (largest cost, total, number of parts, parts)."""
    edges = sorted({edge for span in costs for edge in span})
    inner = edges[1:-1]
    for count in range(len(inner) + 1):
        for cuts in combinations(inner, count):
            spans = list(pairwise((edges[0], *cuts, edges[-1])))
            for counts in product(*(range(1, len(costs[span]) + 1) for span in spans)):
                if sum(counts) == ranks:
                    parts = [(*span, n) for span, n in zip(spans, counts, strict=True)]
                    each = [costs[a, b][n - 1] for a, b, n in parts]
                    yield max(each), sum(map(mul, counts, each)), len(spans), parts


def test_no_division_is_cheaper():
    """Among all divisions of small tables of costs: whole numbers up to 9, so that many are equally cheap."""
    for seed in range(300):
        draw = random.Random(seed)
        edges = sorted(draw.sample(range(3, 20), draw.randint(2, 5)))
        costs = {span: [draw.randint(1, 9) for _ in range(draw.randint(1, 4))] for span in combinations(edges, 2)}
        for ranks in range(1, 17):
            every = sorted(divisions(costs, ranks))
            if every:
                parts = cheapest_parts(costs, ranks)
                assert [option[:3] for option in every if option[3] == parts] == [every[0][:3]], (seed, ranks)


def test_many_ranks_and_layers_are_placed_at_once():
    """A search through all divisions of 10 layers among 64 ranks, about 10^12, does not end."""
    layers = [f'{{ name = "l{i}", kind = "Linear", units = 64 }}' for i in range(10)]
    placements = place_layers(net_of(*layers), 66, 64)
    assert sum(len(placement.ranks) for placement in placements[1:]) == 64


@pytest.mark.parametrize("graph", [net_of(*BETWEEN, B, C), graph_of("alexnet"), graph_of("cifar10_full")])
@pytest.mark.parametrize(("size", "fc_ranks"), [(2, 1), (5, 1), (4, 2), (4, 3), (7, 3), (12, 9)])
def test_every_layer_is_on_some_rank_and_every_rank_has_layers(graph, size, fc_ranks):
    placements = place_layers(graph, size, fc_ranks)
    assert [rank for placement in placements for rank in placement.ranks] == list(range(size))
    assert placements[0].ranks == tuple(range(size - fc_ranks))
    assert (placements[0].start, placements[-1].stop) == (0, len(graph.plan))
    assert all(one.start < one.stop == other.start for one, other in pairwise(placements))


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────
NORM = '{ name = "norm", kind = "BatchNorm" }'
SUM = ('{ name = "b2", kind = "Linear", units = 4 }', '{ name = "sum", kind = "Add", inputs = ["b", "b2"] }')


@pytest.mark.parametrize(
    ("graph", "most", "parts"),
    [
        (graph_of("cifar10_full"), 10, "ip1: 10 columns"),
        (net_of(*BETWEEN, B, C), 15, "a: 6 columns, b: 4 columns, c: 5 columns"),
        (net_of(NORM, B, C), 10, "a to norm: 1 rank, b: 4 columns, c: 5 columns"),
        (net_of(B, *SUM, C), 16, "a: 6 columns, b: 4 columns, b2 to sum: 1 rank, c: 5 columns"),
    ],
)
def test_the_most_ranks_are_the_columns_of_all_layers(graph, most, parts):
    placed = place_layers(graph, most + 1, most)
    assert len(placed) > 1 and placed[-1].ranks[-1] == most
    with pytest.raises(ConfigError, match=says("--fc-ranks", most + 1, parts, most)):
        place_layers(graph, most + 2, most + 1)


@pytest.mark.parametrize(("graph", "alone"), [(net_of(NORM, B, C), "a"), (net_of(B, *SUM, C), "sum")])
def test_layers_with_others_among_them_are_on_one_rank(graph, alone):
    for fc_ranks in range(1, 11):
        for placement in place_layers(graph, 12, fc_ranks)[1:]:
            names = [node.name for node in graph.plan[placement.start : placement.stop]]
            assert len(placement.ranks) == 1 or alone not in names


# ── the table for people ──────────────────────────────────────────────────────────────────────────────────────
def table(graph, size, fc_ranks, itemsize=4):
    return [line for part in place_layers(graph, size, fc_ranks) for line in describe(part, graph, itemsize)]


def test_the_table_of_alexnet():
    assert table(graph_of("alexnet"), 7, 3) == [
        "ranks 0, 1, 2, 3: conv1 to flat, 1.34 GFLOP an example, 8.904 MiB of weights, 36 KiB an example on",
        "rank 4: columns 0:2048 of fc6, 37.8 MFLOP an example, 72.01 MiB of weights, 16 KiB an example on",
        "rank 5: columns 2048:4096 of fc6, 37.8 MFLOP an example, 72.01 MiB of weights, 16 KiB an example on",
        "rank 6: fc7 to fc8, 41.8 MFLOP an example, 79.64 MiB of weights, the loss",
    ]


def test_the_table_shows_each_rank_s_own_columns():
    """3, 3 and 4 of the 10 columns of a layer of 1024 inputs, with biases, 8 bytes each; 2 · 1024 + 1 operations."""
    assert table(graph_of("cifar10_full"), 4, 3, itemsize=8)[1:] == [
        says(f"rank {rank}", f"columns {start}:{stop} of ip1", flops, weights, "the loss")
        for rank, start, stop, flops, weights in (
            (1, 0, 3, "6.15 kFLOP", "24.02 KiB"),
            (2, 3, 6, "6.15 kFLOP", "24.02 KiB"),
            (3, 6, 10, "8.2 kFLOP", "32.03 KiB"),
        )
    ]


def test_all_columns_of_a_part_are_named():
    graph = net_of(*BETWEEN, B)
    whole = place_layers(graph, 3, 1)[1]
    lines = describe(LayerPlacement((2, 3), whole.start, whole.stop), graph, 4)
    for line, columns in zip(lines, ("0:3 of a, 0:2 of b", "3:6 of a, 2:4 of b"), strict=True):
        assert says(columns).matches(line)
