"""The pipeline's sums, state and bytes, the placement of its layers, and refusals."""

from itertools import pairwise

import numpy as np
import pytest

from ringtrain.config.resolve import resolve
from ringtrain.errors import CheckpointError, ConfigError
from ringtrain.exchange import texts
from ringtrain.exchange.base import Roles
from ringtrain.exchange.buckets.subgroup import Subgroup
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.exchange.compatibility import check_options
from ringtrain.exchange.model_parallel.layer_placement import describe, place_layers
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn import spec
from ringtrain.nn.arena import Arena
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import Hyper, make_optimizer
from ringtrain.transport.threads.loopback import LoopbackWorld
from tests.fakes.strategies import Pipeline

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
LR = 0.125


def graph_of(name):
    return spec.load_model(name).graph()


# ── an iteration with gradients of small whole numbers ────────────────────────────────────────────────────────────────
def iterate(t, iterations=3, start=0, state=None, weights=None, optimizer="sgd", **options):
    """Front ranks have gradients of their own; the others that of the sum, as whoever has seen all messages."""
    ops, graph = ReferenceOps("float64"), spec.parse_model(TEXT, "net").graph()
    arena = Arena(t.scratch, graph.parameters(), "float64", exchanged=t.allocate)
    arena.weights[...] = 1 if weights is None else weights
    exchange = Pipeline(t, ops, deadline_s=20.0, **options)
    exchange.prepare(graph)
    exchange.bind(arena, make_optimizer(optimizer, arena.spans, Hyper(momentum=0.5, weight_decay=0.25)))
    exchange.rehearse()
    if state is not None:
        exchange.owned_state.restore(state)
    front = exchange.facts.roles.trainers
    for iteration in range(start, iterations):
        exchange.before(iteration, 1, 1)
        every = [np.random.default_rng([rank, iteration]).integers(-8, 9, arena.count) for rank in front]
        arena.grads[...] = every[t.rank] if t.rank in front else sum(every)
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
    graph, ops = spec.parse_model(TEXT, "net").graph(), ReferenceOps("float64")
    arena = Arena(lambda count, dtype: np.ones(count), graph.parameters(), "float64")
    optimizer = make_optimizer(optimizer, arena.spans, Hyper(momentum=0.5, weight_decay=0.25))
    slots = {name: np.zeros(arena.count) for name in optimizer.slots}
    for iteration in range(iterations):
        grads = sum(np.random.default_rng([rank, iteration]).integers(-8, 9, arena.count) for rank in range(front))
        grads = grads.astype("float64")
        if clip_norm is not None:
            grads *= min(1.0, clip_norm / np.sqrt(np.sum(grads**2)))
        optimizer.apply(ops, arena.weights, grads, slots, LR, iteration + 1, 0, arena.count)
    return arena.weights, slots


@pytest.mark.parametrize(("size", "fc_ranks"), [(2, 1), (4, 1), (4, 2), (5, 3)])
@pytest.mark.parametrize("options", [{"optimizer": "adamw"}, {"clip_norm": 3.0, "algorithm": "tree"}])
def test_every_rank_ends_with_all_weights_and_the_whole_state(size, fc_ranks, options):
    told = {key: value for key, value in options.items() if key != "algorithm"}
    want, slots = reference(size - fc_ranks, **told)
    for weights, state, exchange, before in run(size, fc_ranks=fc_ranks, bucket_bytes=64, **options):
        np.testing.assert_allclose(weights, want, rtol=1e-12, atol=1e-14)
        assert state.keys() == {"step", *slots} and state["step"] == 3
        for name, slot in slots.items():
            np.testing.assert_allclose(state[name], slot, rtol=1e-12, atol=1e-14)
        assert exchange.facts.exact and not np.array_equal(before, weights)  # what others hold was old


def test_a_rank_keeps_the_state_of_its_part_alone():
    ranks = run(4, fc_ranks=2)
    held = [exchange._update.owned.slots["momentum"].size for _, _, exchange, _ in ranks]
    assert held[0] == held[1] and held[1] + held[2] + held[3] == ranks[0][0].size


def test_states_of_another_optimizer_or_model_are_refused():
    def body(t):
        *_, exchange, _ = iterate(t)
        with pytest.raises(
            CheckpointError, match=texts.OTHER_STATE.pattern(found="mean, step", wanted="momentum, step")
        ):
            exchange.owned_state.restore({"step": 1, "mean": np.zeros(3)})
        with pytest.raises(CheckpointError, match=texts.OTHER_SIZE.pattern(name="momentum", found=3)):
            exchange.owned_state.restore({"step": 1, "momentum": np.zeros(3)})

    LoopbackWorld(2).run(body)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_each_message_is_a_batch_of_its_own_at_its_share_of_the_rate(optimizer):
    """Gradients of 1/4 and 3/4 of the batch, which arrive divided by the whole; two iterations."""
    ops, graph = ReferenceOps("float64"), spec.parse_model(TEXT, "net").graph()
    gradients = ((0.25, 2.0), (0.75, -5.0)) * 2

    def body(t):
        arena = Arena(t.scratch, graph.parameters(), "float64", exchanged=t.allocate)
        exchange = Pipeline(t, ops, update="micro-batch", deadline_s=20.0)
        exchange.prepare(graph)
        exchange.bind(arena, make_optimizer(optimizer, arena.spans, Hyper(momentum=0.5, weight_decay=0.25, eps=1e-8)))
        assert not exchange.facts.exact
        arena.weights[...] = 1
        for place, (share, gradient) in enumerate(gradients):
            arena.grads[...] = gradient * share if t.rank else 0
            if t.rank:
                exchange.learn(LR, share, place % 2, 2)
            if place % 2:
                exchange.finish(place // 2, LR)
        return arena.weights[exchange._update.start], exchange.owned_state.state()["step"]

    arena = Arena(lambda count, dtype: np.ones(count), graph.parameters(), "float64")
    rule = make_optimizer(optimizer, arena.spans, Hyper(momentum=0.5, weight_decay=0.25, eps=1e-8))
    slots = {name: np.zeros(arena.count) for name in rule.slots}
    for step, (share, gradient) in enumerate(gradients, 1):
        rule.apply(ops, arena.weights, np.full(arena.count, gradient), slots, LR * share, step, 0, arena.count)
    (_, step), (weight, _) = LoopbackWorld(2).run(body)
    assert weight == pytest.approx(arena.weights[-1], rel=1e-14) and step == 2


def test_some_of_the_ranks_number_themselves():
    def body(t):
        if t.rank == 0:
            return None
        group = Subgroup(t, (1, 3))
        span = np.full(2, t.rank)
        out, into = (
            group.sends([(1 - group.rank, span)], 5),
            group.recvs([(1 - group.rank, got := np.zeros(2, int))], 5),
        )
        into.start(), out.start()
        into.wait(5), out.wait(5)
        return group.rank, group.size, got.tolist()

    found = LoopbackWorld(4).run(lambda t: body(t) if t.rank in (1, 3) else None)
    assert found == [None, (0, 2, [3, 3]), None, (1, 2, [1, 1])]


def test_sums_are_over_front_ranks_alone_and_bytes_are_counted():
    """A ring over 3 of 4 ranks: each sends 2 · 2/3 of the convolution's 32 elements, in 3 chunks, of 8 bytes."""
    ranks = run(4, iterations=1, algorithm="ring")
    sent = [exchange.reducers.traffic().bytes_sent for _, _, exchange, _ in ranks]
    conv = ranks[0][2]._update.stop
    assert sum(sent) == 3 * 2 * 2 * conv * 8 // 3 and sent[3] == 0
    assert ranks[0][2].facts.roles == Roles((0, 1, 2), (3,))


# ── the placement of layers ───────────────────────────────────────────────────────────────────────────────────────────
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


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def kit_of(size=1, **flags):
    config = resolve(("flags", flags))
    check_options(config)
    return ExchangeSettings(config, LoopbackWorld(size).transport(0), ReferenceOps())


def test_what_the_header_says():
    exchange = make_exchange(kit_of(5, fc="pipeline", fc_in_flight=3))
    assert (exchange.facts.name, exchange.facts.header) == (
        "allreduce",
        "with fc pipeline of 4 + 1 ranks, 3 in flight, updated once an iteration",
    )
    exchange = make_exchange(kit_of(5, fc="pipeline", fc_ranks=2, fc_update="micro-batch"))
    assert exchange.facts.header == texts.WITH_PIPELINE(others=3, fc=2, in_flight=2, when=texts.AT_EACH_MESSAGE)


NO_FC = spec.parse_model(
    'input = { shape = [4, 4, 1] }\nlayers = [{ name = "c", kind = "Conv2D", channels = 2, kernel = 3 }]', "n"
).graph()


@pytest.mark.parametrize(
    ("graph", "size", "fc_ranks", "message"),
    [
        (graph_of("alexnet"), 1, 1, texts.NO_OTHER_RANKS(fc=1, ranks="1 rank", least=2)),
        (graph_of("alexnet"), 3, 3, texts.NO_OTHER_RANKS(fc=3, ranks="3 ranks", least=4)),
        (graph_of("alexnet"), 9, 4, texts.MORE_THAN_LAYERS(fc=4, layers="fc6, fc7, fc8", most=3)),
        (graph_of("cifar10_full"), 3, 2, texts.MORE_THAN_LAYERS(fc=2, layers="ip1", most=1)),
        (graph_of("mlp"), 2, 1, texts.NOTHING_BEFORE(layer="fc1")),
        (NO_FC, 2, 1, texts.NO_FC_LAYERS),
    ],
)
def test_models_and_numbers_of_ranks_that_do_not_fit(graph, size, fc_ranks, message):
    exchange = make_exchange(kit_of(size, fc="pipeline", fc_ranks=fc_ranks))
    with pytest.raises(ConfigError) as error:
        exchange.prepare(graph)
    assert message == str(error.value)
