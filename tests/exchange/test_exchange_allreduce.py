"""The all-reduce strategy: gradients are summed, every rank makes the update that one rank alone would make."""

from itertools import pairwise

import numpy as np
import pytest
from test_exchange_strategies import TABLE

from ringtrain.allreduce import texts as texts
from ringtrain.allreduce.catalogue import make_allreduce, schedule_for
from ringtrain.allreduce.wire_formats import WIRES, make_wire
from ringtrain.collectives.catalogue import SCHEDULES
from ringtrain.config.record import OptimizerConfig, config_fields
from ringtrain.errors import UsageError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.exchange.update.ranges import trained_pieces
from ringtrain.nn.arena import Arena
from ringtrain.nn.buckets import make_buckets
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import make_optimizer
from ringtrain.transport.loopback import Loopback
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.strategies import AllReduce
from tests.fakes.transports import DeviceTransport, delaying, recording
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid

HYPER = OptimizerConfig(momentum=0.9, weight_decay=0.1)


def gradients(arena, rank, iteration):
    """Small integers in float64: sums over ranks are exact in any order."""
    rng = np.random.default_rng([rank, iteration])
    return {span.name: rng.integers(-8, 9, span.count).astype("f8") for span in arena.spans}


def write(ops, arena, span, values):
    ops.upload(values, arena.grads[span.start : span.start + span.count])


def start_weights(ops, arena):
    host = np.zeros(arena.count)
    for span in arena.spans:
        host[span.start : span.start + span.count] = np.arange(span.count) / 16
    ops.upload(host, arena.weights)


def bound(transport, ops, optimizer="sgd", **options):
    arena = Arena(transport.allocate, TABLE, "float64")
    start_weights(ops, arena)
    exchange = AllReduce(transport, ops, deadline_s=20.0, **options)
    exchange.bind(arena, make_optimizer(optimizer, arena.spans, HYPER))
    exchange.rehearse()
    return exchange, arena


def iterate(exchange, arena, ops, grads, iteration, announce="backwards"):
    for span in reversed(arena.spans):
        write(ops, arena, span, grads[span.name])
    ops.synchronize()
    order = {"backwards": list(reversed(arena.spans)), "forwards": list(arena.spans), "never": []}[announce]
    for span in order:
        exchange.grad_ready(span)
    exchange.finish(iteration, 0.125)


def train(transport, ops, iterations=3, announce="backwards", **options):
    exchange, arena = bound(transport, ops, **options)
    for iteration in range(iterations):
        iterate(exchange, arena, ops, gradients(arena, transport.rank, iteration), iteration, announce)
    exchange.synchronize()
    weights = ops.to_host(arena.weights)
    exchange.reducers.close()
    return weights


def serial(size, iterations=3, **options):
    """One rank, given the sums of the gradients of ``size`` ranks."""
    ops = ReferenceOps("float64")
    exchange, arena = bound(Loopback(), ops, **options)
    for iteration in range(iterations):
        every = [gradients(arena, rank, iteration) for rank in range(size)]
        summed = {span.name: sum(own[span.name] for own in every) for span in arena.spans}
        iterate(exchange, arena, ops, summed, iteration)
    return ops.to_host(arena.weights)


@pytest.mark.parametrize(
    ("bucket_bytes", "algorithm", "size"),
    grid(
        lambda bucket_bytes, algorithm, size: size == 3 or (algorithm == "ring" and bucket_bytes == 600),
        [1, 600, 1 << 20],
        ["ring", "star"],
        [1, 2, 3, 4, 5],
    ),
)
def test_training_together_is_training_alone_on_the_sum(size, algorithm, bucket_bytes):
    options = {"algorithm": algorithm, "bucket_bytes": bucket_bytes, "segment_bytes": 100}
    want = serial(size)
    for weights in LoopbackWorld(size).run(lambda t: train(t, ReferenceOps("float64"), **options)):
        np.testing.assert_array_equal(weights, want)


@pytest.mark.parametrize(
    ("algorithm", "nodes"),
    grid(
        lambda algorithm, nodes: nodes == 2 or "hierarchical" in algorithm,
        [*SCHEDULES, "hierarchical:sliced:tree"],
        [1, 2, 3],
    ),
)
def test_every_algorithm_on_the_nodes_that_the_transport_knows(algorithm, nodes):
    want = serial(5)
    for weights in LoopbackWorld(5, nodes).run(
        lambda t: train(t, ReferenceOps("float64"), algorithm=algorithm, bucket_bytes=600)
    ):
        np.testing.assert_array_equal(weights, want)


def test_the_schedule_follows_the_nodes():
    def body(t):
        return [schedule_for(name, t).chunks for name in ("ring", "hierarchical", "hierarchical-leader")]

    assert LoopbackWorld(6, nodes=2).run(body) == [[6, 6, 2]] * 6
    assert LoopbackWorld(6, nodes=1).run(body) == [[6, 6, 1]] * 6


@pytest.mark.parametrize("announce", ["forwards", "never"])
def test_gradients_may_become_final_in_any_order_or_unannounced(announce):
    def body(t):
        return train(t, ReferenceOps("float64"), announce=announce if t.rank else "backwards", bucket_bytes=1)

    for weights in LoopbackWorld(3).run(body):
        np.testing.assert_array_equal(weights, serial(3))


def test_messages_that_end_late():
    def body(t):
        return train(delaying(t, seed=3), ReferenceOps("float64"), bucket_bytes=100, segment_bytes=64)

    for weights in LoopbackWorld(4).run(body):
        np.testing.assert_array_equal(weights, serial(4))


def test_overlapping_operations_on_other_spans_are_left_in_the_queue():
    """Backward goes on issuing while buckets are in flight: its operations are no reason to refuse."""

    def body(t):
        ops = FakeGpuOps(dtype="float64")
        exchange, arena = bound(DeviceTransport(t, ops), ops, bucket_bytes=1)
        grads = gradients(arena, t.rank, 0)
        for span in reversed(arena.spans):
            write(ops, arena, span, grads[span.name])
            exchange.grad_ready(span)
        exchange.finish(0, 0.125)
        return ops.to_host(arena.weights)

    for weights in LoopbackWorld(3).run(body):
        np.testing.assert_array_equal(weights, serial(3, iterations=1))


def test_buckets_start_in_the_same_order_on_all_ranks():
    def body(t):
        seen, log = recording(t)
        train(seen, ReferenceOps("float64"), announce="forwards" if t.rank % 2 else "backwards", bucket_bytes=1)
        return list(dict.fromkeys(tag for verb, _, _, tag in log if verb == "send"))

    assert LoopbackWorld(4).run(body) == [[0, 1, 2, 3, 4]] * 4


def test_a_bucket_starts_when_its_last_gradient_is_final_and_not_before():
    def body(t):
        seen, log = recording(t)
        exchange, arena = bound(seen, ReferenceOps("float64"), bucket_bytes=1)
        *_, b, c = arena.spans
        exchange.grad_ready(b)
        before = len(log)
        exchange.grad_ready(c)
        started = {tag for *_, tag in log}
        exchange.finish(0, 0.1)
        return before, started

    assert LoopbackWorld(2).run(body) == [(0, {0, 1})] * 2


def test_traffic_counts_bytes_and_blocked_time():
    def body(t):
        exchange, arena = bound(t, ReferenceOps("float64"), algorithm="star", bucket_bytes=300)
        assert exchange.reducers.traffic().bytes_sent == 0
        for iteration in range(2):
            iterate(exchange, arena, ReferenceOps("float64"), gradients(arena, t.rank, iteration), iteration)
        traffic = exchange.reducers.traffic()
        assert traffic.exposed_s > 0
        return traffic.bytes_sent / (2 * 8 * arena.count)

    assert LoopbackWorld(3).run(body) == [2, 1, 1]


def test_state_is_the_same_at_every_size_and_goes_back_in():
    def state_after(size, iterations):
        def body(t):
            ops = ReferenceOps("float64")
            exchange, arena = bound(t, ops, optimizer="adamw")
            for iteration in range(iterations):
                # Every rank adds an equal share, so that the sum is the same at every size.
                share = {name: g / size for name, g in gradients(arena, 0, iteration).items()}
                iterate(exchange, arena, ops, share, iteration)
            return exchange.owned_state.state(), ops.to_host(arena.weights)

        return LoopbackWorld(size).run(body)[0]

    def resumed(t):
        ops = ReferenceOps("float64")
        exchange, arena = bound(t, ops, optimizer="adamw")
        state, weights = state_after(4, 2)
        exchange.owned_state.restore(state)
        ops.upload(weights, arena.weights)
        iterate(exchange, arena, ops, {name: g / 2 for name, g in gradients(arena, 0, 2).items()}, 2)
        return ops.to_host(arena.weights)

    state, unbroken = state_after(1, 3)
    assert set(state) == {"step", "mean", "square"} and state["step"] == 3
    for weights in LoopbackWorld(2).run(resumed):
        np.testing.assert_array_equal(weights, unbroken)


# ── 16 bits on the wire ───────────────────────────────────────────────────────────────────────────────────────────────
def trained(transport, ops, wire, iterations=3, **options):
    """Weights after a few iterations in float32, and the bytes that were sent."""
    arena = Arena(transport.allocate, TABLE, "float32")
    ops.upload(np.arange(arena.count) / 16, arena.weights)
    exchange = AllReduce(transport, ops, wire=wire, deadline_s=20.0, **options)
    exchange.bind(arena, make_optimizer("sgd", arena.spans, HYPER))
    exchange.rehearse()
    for iteration in range(iterations):
        rng = np.random.default_rng([transport.rank, iteration])
        grads = {span.name: rng.standard_normal(span.count).astype("f4") for span in arena.spans}
        iterate(exchange, arena, ops, grads, iteration)
    return ops.to_host(arena.weights), exchange.reducers.traffic().bytes_sent


@pytest.mark.parametrize("algorithm", [name for name in SCHEDULES if name != "recursive-doubling"])
def test_replicas_are_equal_and_half_the_bytes_are_sent(algorithm):
    def together(wire):
        return LoopbackWorld(5, 2).run(
            lambda t: trained(t, ReferenceOps("float32"), wire, algorithm=algorithm, bucket_bytes=300)
        )

    (exact, whole), *_ = together("none")
    for wire, roundoff in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        ranks = together(wire)
        assert len({weights.tobytes() for weights, _ in ranks}) == 1
        assert ranks[0][1] == whole / 2
        error = np.abs(ranks[0][0] - exact).max()
        assert 0 < error < 20 * roundoff


def test_the_flag_offers_every_wire():
    assert config_fields()["wire"].metadata["choices"] == WIRES


def test_who_rounds_is_not_exact():
    alone = Loopback()
    assert not AllReduce(alone, ReferenceOps("float32"), wire="float16").facts.exact


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wire": "bfloat61"}, says("'bfloat61'", "did you mean 'bfloat16'")),
        ({"wire": "float16", "algorithm": "mpi"}, says("'mpi'", "wire")),
        (
            {"wire": "float16", "algorithm": "recursive-doubling"},
            says("'recursive-doubling'"),
        ),
        ({"wire": "float16", "algorithm": "rign"}, "did you mean 'ring'"),
    ],
)
def test_wires_that_cannot_be(options, message):
    with pytest.raises(UsageError, match=message):
        AllReduce(Loopback(), ReferenceOps("float32"), **options)


def test_a_wire_carries_sums_of_float32_alone():
    alone, wire = Loopback(), make_wire("bfloat16", ReferenceOps("float32"))
    with pytest.raises(UsageError, match=says("bfloat16", "float64")):
        make_allreduce(alone, np.zeros(3), "ring", np.add, wire=wire)
    with pytest.raises(UsageError, match=says("bfloat16", "max")):
        make_allreduce(alone, np.zeros(3, "f4"), "ring", np.maximum, op="max", wire=wire)
    with pytest.raises(UsageError, match=says("'mpi'", "wire")):
        make_allreduce(alone, np.zeros(3, "f4"), "mpi", np.add, wire=wire)


def test_unknown_algorithms_are_refused():
    with pytest.raises(UsageError, match="did you mean 'star'"):
        AllReduce(Loopback(), ReferenceOps("float64"), algorithm="stat")


def test_everybody_trains_and_the_loss_is_divided_by_the_whole():
    exchange = AllReduce(LoopbackWorld(3).transport(0), ReferenceOps("float64"))
    assert exchange.facts.roles == Roles((0, 1, 2)) and exchange.denominator(5, 15) == 15
    assert exchange.facts.exact and exchange.facts.name == "allreduce" and exchange.prepare("graph") == "graph"


def test_buckets_are_whole_spans_from_the_end():
    spans = Arena(lambda count, dtype: np.zeros(count, dtype), TABLE, "float64").spans
    names = [[span.name for span in bucket.spans] for bucket in make_buckets(spans, 8, 700)]
    assert names == [["b.weight", "c.weight"], ["a.weight", "a.bias", "n.mean"]]
    assert [len(b.spans) for b in make_buckets(spans, 8, 1)] == [1] * 5
    assert [len(b.spans) for b in make_buckets(spans, 8, 1 << 30)] == [5]
    full = 8 * (spans[-1].stop - spans[-1].start)
    assert next(len(b.spans) for b in make_buckets(spans, 8, full)) == 1
    assert make_buckets([], 8, 1) == []
    covered = sorted((b.start, b.stop) for b in make_buckets(spans, 8, 200))
    assert covered[0][0] == 0 and covered[-1][1] == spans[-1].stop
    assert all(a[1] == b[0] for a, b in pairwise(covered))


def test_statistics_are_neither_counted_nor_clipped():
    ops = ReferenceOps("float64")
    arena = Arena(lambda count, dtype: np.zeros(count, dtype), TABLE, "float64")
    pieces = trained_pieces(arena.spans)
    assert pieces == [(0, arena.spans[1].stop), (arena.spans[3].start, arena.spans[4].stop)]
    arena.grad(arena.spans[0])[...] = 3
    arena.grad(arena.spans[2])[...] = 1000
    norm, optimizer = 3 * 35**0.5, make_optimizer("sgd", arena.spans, OptimizerConfig(momentum=0.0))
    update = OwnedUpdate(ops, arena, optimizer, arena.grads, everything(arena), clip_norm=norm / 2)
    update.begin(1.0)
    update.apply()
    np.testing.assert_allclose(arena.weight(arena.spans[0]), -1.5, rtol=1e-12)
    np.testing.assert_allclose(arena.weight(arena.spans[2]), 1000 * TABLE[2][1].rate, rtol=1e-12)
