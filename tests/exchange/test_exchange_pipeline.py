"""The pipeline's sums, state and bytes, its parts, and refusals; which ranks hold which layers and columns."""

import random
from itertools import combinations, pairwise, product
from operator import mul

import numpy as np
import pytest
from exchange_support import HYPER, LR, gradient, kit_of, over_arena

from ringtrain.errors import CheckpointError, ConfigError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.exchange.model_parallel import part_gather
from ringtrain.exchange.model_parallel.layer_placement import (
    EXCHANGE_FLOPS,
    LayerPlacement,
    cheapest_parts,
    describe,
    place_layers,
    rank_cost,
)
from ringtrain.exchange.model_parallel.part_gather import own_part
from ringtrain.memory.arena import Arena, lay_out
from ringtrain.memory.spans import Fill, Parameter
from ringtrain.nn import spec
from ringtrain.nn.initial import initial
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.catalogue import make_optimizer
from tests.fakes.strategies import Pipeline
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.updates import apply

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


def whole_arena(graph):
    return Arena(lambda count, dtype: np.ones(count), graph.parameters(), "float64")


def bound(t, optimizer="sgd", **options):
    """An exchange with this rank's arena, weights of 1, and the spans of the whole network."""
    ops, graph = ReferenceOps("float64"), spec.parse_model(TEXT, "net").graph()
    exchange = Pipeline(t, ops, deadline_s=20.0, **options)
    arena = Arena(t.scratch, exchange.prepare(graph).parameters(), "float64")
    exchange.bind(arena, make_optimizer(optimizer, arena.spans, HYPER))
    spans = whole_arena(graph).spans
    arena.weights[...] = exchange.own_part(np.ones(spans[-1].stop))
    return exchange, arena, spans


def graph_of(name):
    return spec.load_model(name).graph()


# ── an iteration with gradients of small whole numbers ────────────────────────────────────────────────────────────────
def without_padding(spans, flat):
    return np.concatenate([flat[span.start : span.start + span.count] for span in spans])


def iterate(t, iterations=3, start=0, state=None, **options):
    """Front ranks have gradients of their own; the others that of the sum, as whoever has seen all messages."""
    exchange, arena, spans = bound(t, **options)
    exchange.rehearse()
    if state is not None:
        exchange.owned_state.restore(state)
    front = exchange.facts.roles.trainers
    for iteration in range(start, iterations):
        exchange.before(iteration, 1, 1)
        every = [gradient(spans, rank, iteration) for rank in front]
        arena.grads[...] = every[t.rank] if t.rank in front else exchange.own_part(sum(every))
        for span in reversed(arena.spans):
            exchange.grad_ready(span)
        exchange.finish(iteration, LR)
    before = arena.weights.copy()
    exchange.synchronize()
    return arena.weights.copy(), exchange.owned_state.state(), exchange, before


def run(size, **options):
    return LoopbackWorld(size).run(lambda t: iterate(t, **options))


def reference(front, optimizer="sgd", clip_norm=None, iterations=3):
    """The updates of one rank by the sum of all gradients."""
    arena, ops = whole_arena(spec.parse_model(TEXT, "net").graph()), ReferenceOps("float64")
    optimizer = make_optimizer(optimizer, arena.spans, HYPER)
    slots = {name: np.zeros(arena.count) for name in optimizer.slots}
    for iteration in range(iterations):
        grads = sum(gradient(arena.spans, rank, iteration) for rank in range(front))
        if clip_norm is not None:
            grads *= min(1.0, clip_norm / np.sqrt(np.sum(grads**2)))
        apply(optimizer, ops, arena.weights, grads, slots, LR, iteration + 1, 0, arena.count)
    return arena.spans, arena.weights, slots


@pytest.mark.parametrize(("size", "fc_ranks"), [(2, 1), (4, 1), (4, 2), (5, 3), (8, 7)])
@pytest.mark.parametrize("options", [{"optimizer": "adamw"}, {"clip_norm": 3.0, "algorithm": "tree"}])
def test_ranks_in_front_end_with_all_weights_and_the_whole_state(size, fc_ranks, options):
    spans, want, slots = reference(size - fc_ranks, **{k: value for k, value in options.items() if k != "algorithm"})
    ranks = run(size, fc_ranks=fc_ranks, bucket_bytes=64, **options)
    for weights, state, exchange, before in ranks[: size - fc_ranks]:
        assert state.keys() == {"step", *slots} and state["step"] == 3
        for pair in ((weights, want), *((state[name], slot) for name, slot in slots.items())):
            np.testing.assert_allclose(*(without_padding(spans, flat) for flat in pair), rtol=1e-12, atol=1e-14)
        assert exchange.facts.exact and not np.array_equal(before, weights)  # what others hold was old
    for weights, state, exchange, _ in ranks[size - fc_ranks :]:
        np.testing.assert_allclose(weights, exchange.own_part(want), rtol=1e-12, atol=1e-14)
        assert state == {"step": 3}


def test_a_rank_keeps_the_state_of_its_part_alone():
    spans, ranks = reference(2)[0], run(4, fc_ranks=2)
    conv = next(span.start for span in spans if span.name.startswith("fc1"))
    sizes = [exchange.facts.state_bytes for _, _, exchange, _ in ranks]
    assert sizes == [8 * conv] * 2 + [8 * weights.size for weights, *_ in ranks[2:]]
    assert sum(sizes[1:]) < 8 * spans[-1].stop + 8 * 16 * 4  # each rank pads its own columns


def test_states_of_another_optimizer_or_model_are_refused():
    def body(t):
        *_, exchange, _ = iterate(t)
        with pytest.raises(
            CheckpointError, match=says("--optimizer", "--sync", "--compress", "mean, step", "momentum, step")
        ):
            exchange.owned_state.restore({"step": 1, "mean": np.zeros(3)})
        with pytest.raises(CheckpointError, match=says("'momentum'", 3)):
            exchange.owned_state.restore({"step": 1, "momentum": np.zeros(3)})

    LoopbackWorld(2).run(body)


def test_a_state_goes_on_at_other_numbers_of_ranks():
    """Written by 2 + 2 ranks; read by 1 + 3, by 3 + 1."""
    options = {"optimizer": "adamw", "algorithm": "auto"}
    _, state, *_ = run(4, fc_ranks=2, iterations=2, **options)[0]
    spans, _, slots = reference(2, "adamw", iterations=2)
    for name, slot in slots.items():
        np.testing.assert_allclose(*(without_padding(spans, flat) for flat in (state[name], slot)), rtol=1e-12)
    for size, fc_ranks in ((4, 3), (4, 1)):
        again = run(size, fc_ranks=fc_ranks, start=2, iterations=2, state=state, **options)[0][1]
        for name in slots:
            assert np.array_equal(*(without_padding(spans, flat) for flat in (again[name], state[name])))
        assert again["step"] == 2


def test_sums_are_over_front_ranks_alone_and_bytes_are_counted():
    """A ring over 3 of 4 ranks: each sends 2 · 2/3 of the convolution's elements, in 3 chunks, of 8 bytes."""
    ranks = run(4, iterations=1, algorithm="ring")
    sent = [exchange.reducers.traffic().bytes_sent for _, _, exchange, _ in ranks]
    conv = next(span.start for span in reference(1)[0] if span.name.startswith("fc1"))
    assert sum(sent) == 3 * 2 * 2 * conv * 8 // 3 and sent[3] == 0
    assert ranks[0][2].facts.roles == Roles((0, 1, 2), parts=(3,))


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def counted(spans):
    """1, 2, 3, …; zero in the padding."""
    return over_arena(spans, np.ones) * np.arange(1, spans[-1].stop + 1)


def test_columns_of_a_parameter_are_one_of_its_own():
    whole = Parameter("weight", (3, 5), Fill("constant"))
    part = whole.of_columns(1, 3)
    assert (whole.whole_shape, part.shape, part.whole_shape) == ((3, 5), (3, 2), (3, 5))
    values = np.arange(15).reshape(3, 5)
    assert whole.own(values) is values
    assert part.own(values).tolist() == [[1, 2], [6, 7], [11, 12]]
    assert Parameter("bias", (5,), Fill("constant")).of_columns(4, 5).own(np.arange(5)).tolist() == [4]


@pytest.mark.parametrize("edges", [(0, 6), (0, 2, 6), (0, 1, 2, 5, 6)])
def test_columns_are_drawn_as_those_of_the_whole_parameter(edges):
    whole = Parameter("weight", (4, 6), Fill("gaussian", 0.1))
    drawn = initial(whole, "fc.weight", seed=7)
    parts = [initial(whole.of_columns(a, b), "fc.weight", seed=7) for a, b in pairwise(edges)]
    assert np.array_equal(np.concatenate(parts, axis=1), drawn) and np.ptp(drawn) > 0


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize(("size", "fc_ranks"), [(2, 1), (4, 2), (5, 4), (9, 7)])
def test_what_is_cut_into_parts_is_gathered_whole_on_all_ranks_in_front(monkeypatch, size, fc_ranks, block):
    """In blocks of a row, of several, of a whole parameter."""
    monkeypatch.setattr(part_gather, "BLOCK", block)
    spans = lay_out(spec.parse_model(TEXT, "net").graph().parameters())
    values, cut = counted(spans), next(span.start for span in spans if span.name == "fc1.weight")

    def body(t):
        exchange, arena, _ = bound(t, fc_ranks=fc_ranks)
        part, whole = exchange.own_part(values), np.zeros(spans[-1].stop)
        if t.rank < size - fc_ranks:
            exchange._gather.gather(whole)
            return whole
        assert part.size == arena.count and not np.shares_memory(part, values)
        exchange._gather.gather(part)
        return set(part[part > 0])

    ranks = LoopbackWorld(size).run(body)
    front, parts = ranks[: size - fc_ranks], ranks[size - fc_ranks :]
    for whole in front:
        assert np.array_equal(whole[cut:], values[cut:]) and not whole[:cut].any()
    assert set().union(*parts) == set(values[cut:][values[cut:] > 0])
    assert sum(map(len, parts)) == np.count_nonzero(values[cut:])  # no element on two ranks


def test_a_part_has_its_columns_of_each_row_in_its_own_order():
    def body(t):
        _, arena, spans = bound(t, fc_ranks=7)
        values, divided = counted(spans), 0
        part = own_part(arena, spans, values)
        for span in arena.spans if t.rank else ():
            whole = next(each for each in spans if each.name == span.name)
            rows = values[whole.start : whole.start + whole.count].reshape(whole.shape)
            columns, values_of_span = span.parameter.columns, part[span.start : span.start + span.count]
            assert np.array_equal(
                values_of_span.reshape(span.shape), rows if columns is None else rows[..., columns.start : columns.stop]
            )
            divided += columns is not None and columns.start > 0 and len(span.shape) == 2
        return divided

    assert sum(LoopbackWorld(8).run(body)) > 2


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_the_header_says():
    exchange = make_exchange(kit_of(5, fc="pipeline"))
    assert (exchange.facts.name, exchange.facts.header) == (
        "allreduce",
        "with fc pipeline of 4 + 1 ranks, 2 in flight, updated once an iteration",
    )
    assert exchange.facts.roles == Roles((0, 1, 2, 3), parts=(4,))


NO_FC = spec.parse_model(
    'input = { shape = [4, 4, 1] }\nlayers = [{ name = "c", kind = "Conv2D", channels = 2, kernel = 3 }]', "n"
).graph()


@pytest.mark.parametrize(
    ("graph", "size", "fc_ranks", "message"),
    [
        (graph_of("resnet20"), 12, 11, says("--fc-ranks", 11, "fc: 10 columns", 10)),
        (graph_of("mlp"), 2, 1, says("--fc", "'fc1'")),
        (NO_FC, 2, 1, says("--fc pipeline", "does not end")),
        (None, 1, 1, says("--fc-ranks 1 of 1 rank", "--fc data", 2)),
        (None, 3, 3, says("--fc-ranks 3 of 3 ranks", "--fc data", 4)),
        (None, 9, 11, says("--fc-ranks 11 of 9 ranks", "--fc data", 12)),
    ],
)
def test_models_and_numbers_of_ranks_that_do_not_fit(graph, size, fc_ranks, message):
    """Of whatever model, ranks must be left for the other layers."""
    with pytest.raises(ConfigError, match=message):
        make_exchange(kit_of(size, fc="pipeline", fc_ranks=fc_ranks)).prepare(graph)


# ── which ranks hold which layers and columns ─────────────────────────────────────────────────────────────────────────
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
        ("resnet20", 2, {"fc to fc": 2}),
        ("resnet20", 10, {"fc to fc": 10}),
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


@pytest.mark.parametrize("graph", [net_of(*BETWEEN, B, C), graph_of("alexnet"), graph_of("resnet20")])
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
    ("graph", "most", "parts", "alone"),
    [
        (graph_of("resnet20"), 10, "fc: 10 columns", ""),
        (net_of(*BETWEEN, B, C), 15, "a: 6 columns, b: 4 columns, c: 5 columns", ""),
        (net_of(NORM, B, C), 10, "a to norm: 1 rank, b: 4 columns, c: 5 columns", "a"),
        (net_of(B, *SUM, C), 16, "a: 6 columns, b: 4 columns, b2 to sum: 1 rank, c: 5 columns", "sum"),
    ],
)
def test_the_most_ranks_are_the_columns_of_layers_that_no_other_is_among(graph, most, parts, alone):
    placed = place_layers(graph, most + 1, most)
    assert len(placed) > 1 and placed[-1].ranks[-1] == most
    with pytest.raises(ConfigError, match=says("--fc-ranks", most + 1, parts, most)):
        place_layers(graph, most + 2, most + 1)
    for fc_ranks in range(1, 11):
        for placement in place_layers(graph, 12, fc_ranks)[1:]:
            names = [node.name for node in graph.plan[placement.start : placement.stop]]
            assert len(placement.ranks) == 1 or alone not in names


# ── the table for people ──────────────────────────────────────────────────────────────────────────────────────
def table(graph, size, fc_ranks, itemsize=4):
    return [line for part in place_layers(graph, size, fc_ranks) for line in describe(part, graph, itemsize)]


def test_the_table_shows_each_ranks_own_columns():
    assert table(graph_of("alexnet"), 7, 3) == [
        "ranks 0, 1, 2, 3: conv1 to flat, 1.33 GFLOP an example, 8.904 MiB of weights, 36 KiB an example on",
        "rank 4: columns 0:2048 of fc6, 37.8 MFLOP an example, 72.01 MiB of weights, 16 KiB an example on",
        "rank 5: columns 2048:4096 of fc6, 37.8 MFLOP an example, 72.01 MiB of weights, 16 KiB an example on",
        "rank 6: fc7 to fc8, 41.8 MFLOP an example, 79.64 MiB of weights, the loss",
    ]
    # 3, 3 and 4 of the 10 columns of a layer of 64 inputs, with biases, 8 bytes each; 2 · 64 + 1 operations.
    assert table(graph_of("resnet20"), 4, 3, itemsize=8)[1:] == [
        says(f"rank {rank}", f"columns {start}:{stop} of fc", flops, weights, "the loss")
        for rank, start, stop, flops, weights in (
            (1, 0, 3, "387 FLOP", "1.523 KiB"),
            (2, 3, 6, "387 FLOP", "1.523 KiB"),
            (3, 6, 10, "516 FLOP", "2.031 KiB"),
        )
    ]


def test_all_columns_of_a_part_are_named():
    graph = net_of(*BETWEEN, B)
    whole = place_layers(graph, 3, 1)[1]
    lines = describe(LayerPlacement((2, 3), whole.start, whole.stop), graph, 4)
    for line, columns in zip(lines, ("0:3 of a, 0:2 of b", "3:6 of a, 2:4 of b"), strict=True):
        assert says(columns).matches(line)
