"""The pipeline's sums, state and bytes, and refusals. Placement: test_exchange_layer_placement."""

import numpy as np
import pytest
from exchange_support import HYPER, LR, gradient, kit_of
from pipeline_support import TEXT, bound, whole_arena

from ringtrain.errors import CheckpointError, ConfigError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.nn import spec
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import make_optimizer
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.updates import apply


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
