"""The pipeline's sums, state and bytes, its parts, and refusals. Placement: test_exchange_layer_placement."""

from itertools import pairwise

import numpy as np
import pytest
from exchange_support import HYPER, LR, gradient, kit_of, over_arena

from ringtrain.errors import CheckpointError, ConfigError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.exchange.model_parallel import part_gather
from ringtrain.exchange.model_parallel.part_gather import own_part
from ringtrain.exchange.model_parallel.pipeline import MessageServing
from ringtrain.nn import spec
from ringtrain.nn.arena import Arena, lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.nn.initial import initial
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import make_optimizer
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
    if t.rank not in exchange.facts.roles.whole(t.size):
        exchange.serving = MessageServing()  # in a run it is the stage
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


@pytest.mark.parametrize("sync", ["allreduce", "sharded", "server"])
def test_a_state_goes_on_at_other_numbers_of_ranks(sync):
    """Written by 2 + 2 ranks; read by 1 + 3, by 3 + 1."""
    options = {"sync": sync, "optimizer": "adamw", "algorithm": "auto"}
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
    exchange = make_exchange(kit_of(5, fc="pipeline", sync="server", staleness=2))
    assert exchange.facts.header == says("rank 0", "staleness 2", "4 + 1 ranks", "2 in flight")
    assert not exchange.facts.exact and exchange.apart


@pytest.mark.parametrize(("flags", "servers"), [({"servers": 2}, (0, 1)), ({"dedicated": True}, (0,))])
def test_servers_are_among_the_ranks_in_front(flags, servers):
    roles = make_exchange(kit_of(5, fc="pipeline", fc_ranks=2, sync="server", **flags)).facts.roles
    trainers = (1, 2) if "dedicated" in flags else (0, 1, 2)
    assert roles == Roles(trainers, servers, parts=(3, 4))


NO_FC = spec.parse_model(
    'input = { shape = [4, 4, 1] }\nlayers = [{ name = "c", kind = "Conv2D", channels = 2, kernel = 3 }]', "n"
).graph()


@pytest.mark.parametrize(
    ("graph", "size", "fc_ranks", "message"),
    [
        (graph_of("cifar10_full"), 12, 11, says("--fc-ranks", 11, "ip1: 10 columns", 10)),
        (graph_of("mlp"), 2, 1, says("--fc", "'fc1'")),
        (NO_FC, 2, 1, says("--fc pipeline", "does not end")),
    ],
)
def test_models_that_do_not_fit(graph, size, fc_ranks, message):
    exchange = make_exchange(kit_of(size, fc="pipeline", fc_ranks=fc_ranks))
    with pytest.raises(ConfigError, match=message):
        exchange.prepare(graph)


@pytest.mark.parametrize(("size", "fc_ranks"), [(1, 1), (3, 3), (9, 11)])
def test_ranks_must_be_left_for_the_other_layers(size, fc_ranks):
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    with pytest.raises(ConfigError, match=says(f"--fc-ranks {fc_ranks} of {ranks}", "--fc data", fc_ranks + 1)):
        make_exchange(kit_of(size, fc="pipeline", fc_ranks=fc_ranks))
