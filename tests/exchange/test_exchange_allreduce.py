"""The all-reduce strategy: gradients are summed, every rank makes the update that one rank alone would make."""

from itertools import pairwise

import numpy as np
import pytest
from exchange_support import HOST, TABLE, bound, each_equal, gradient, iterate

from ringtrain.allreduce.catalogue import make_allreduce, schedule_for
from ringtrain.allreduce.wire_formats import WIRES, make_wire
from ringtrain.collectives.catalogue import SCHEDULES
from ringtrain.config.record import OptimizerConfig, config_fields
from ringtrain.errors import UsageError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.update.owned_update import OwnedUpdate, everything
from ringtrain.exchange.update.ranges import trained_pieces
from ringtrain.memory.arena import Arena
from ringtrain.memory.buckets import make_buckets
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.catalogue import make_optimizer
from ringtrain.transport.loopback import Loopback
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.strategies import AllReduce
from tests.fakes.transports import DeviceTransport, delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid


def train(t, iterations=3, order="backwards", **options):
    exchange, arena = bound(AllReduce, t, **options)
    spans = {"backwards": arena.spans[::-1], "forwards": arena.spans, "never": ()}[order]
    for iteration in range(iterations):
        iterate(exchange, arena, t.rank, iteration, order=spans)
    exchange.synchronize()
    weights = arena.weights.copy()
    exchange.reducers.close()
    return weights


def serial(size, iterations=3):
    """The weights of one rank that has the sums of the gradients of ``size`` ranks."""
    exchange, arena = bound(AllReduce, Loopback())
    for iteration in range(iterations):
        iterate(exchange, arena, 0, iteration, grads=sum(gradient(arena.spans, r, iteration) for r in range(size)))
    return arena.weights


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
    each_equal(LoopbackWorld(size).run(lambda t: train(t, **options)), serial(size))


@pytest.mark.parametrize(
    ("algorithm", "nodes"),
    grid(
        lambda algorithm, nodes: nodes == 2 or "hierarchical" in algorithm,
        [*SCHEDULES, "hierarchical:sliced:tree"],
        [1, 2, 3],
    ),
)
def test_every_algorithm_on_the_nodes_that_the_transport_knows(algorithm, nodes):
    together = LoopbackWorld(5, nodes).run(lambda t: train(t, algorithm=algorithm, bucket_bytes=600))
    each_equal(together, serial(5))


def test_the_schedule_follows_the_nodes():
    def body(t):
        return [schedule_for(name, t).chunks for name in ("ring", "hierarchical", "hierarchical:tree:ring")]

    assert LoopbackWorld(6, nodes=2).run(body) == [[6, 6, 2]] * 6
    assert LoopbackWorld(6, nodes=1).run(body) == [[6, 6, 1]] * 6


@pytest.mark.parametrize("order", ["forwards", "never"])
def test_gradients_may_become_final_in_any_order_or_unannounced_and_messages_end_late(order):
    def body(t, seed=None):
        late = t if seed is None else delaying(t, seed=seed)
        return train(late, order=order if t.rank else "backwards", bucket_bytes=1, segment_bytes=64)

    each_equal([*LoopbackWorld(4).run(body), *LoopbackWorld(4).run(lambda t: body(t, 3))], serial(4))


def test_overlapping_operations_on_other_spans_are_left_in_the_queue():
    """Backward goes on issuing while buckets are in flight: its operations are no reason to refuse."""

    def body(t):
        ops = FakeGpuOps(dtype="float64")
        exchange, arena = bound(AllReduce, DeviceTransport(t, ops), ops=ops, bucket_bytes=1)
        iterate(exchange, arena, t.rank, 0, ops=ops)
        return ops.to_host(arena.weights)

    each_equal(LoopbackWorld(3).run(body), serial(3, iterations=1))


def test_traffic_counts_bytes_and_blocked_time():
    def body(t):
        exchange, arena = bound(AllReduce, t, algorithm="star", bucket_bytes=300)
        assert exchange.reducers.traffic().bytes_sent == 0
        for iteration in range(2):
            iterate(exchange, arena, t.rank, iteration)
        traffic = exchange.reducers.traffic()
        assert traffic.exposed_s > 0
        return traffic.bytes_sent / (2 * 8 * arena.count)

    assert LoopbackWorld(3).run(body) == [2, 1, 1]


def test_state_is_the_same_at_every_size_and_goes_back_in():
    def goes_on(t, iterations, state=None, weights=None):
        """Every rank adds an equal share, so that the sum is the same at every size."""
        exchange, arena = bound(AllReduce, t, optimizer="adamw")
        if state is not None:
            exchange.owned_state.restore(state)
            arena.weights[...] = weights
        for iteration in iterations:
            iterate(exchange, arena, 0, iteration, grads=gradient(arena.spans, 0, iteration) / t.size)
        return exchange.owned_state.state(), arena.weights.copy()

    state, unbroken = goes_on(Loopback(), range(3))
    assert set(state) == {"step", "mean", "square"} and state["step"] == 3
    begun = LoopbackWorld(4).run(lambda t: goes_on(t, range(2)))[0]
    each_equal([weights for _, weights in LoopbackWorld(2).run(lambda t: goes_on(t, [2], *begun))], unbroken)


# ── 16 bits on the wire ───────────────────────────────────────────────────────────────────────────────────────────────
def trained(t, wire, **options):
    """Weights after three iterations in float32, and the bytes that were sent."""
    ops = ReferenceOps("float32")
    exchange, arena = bound(AllReduce, t, ops=ops, wire=wire, **options)
    for iteration in range(3):
        normal = np.random.default_rng([t.rank, iteration]).standard_normal(arena.count)
        iterate(exchange, arena, t.rank, iteration, grads=normal, ops=ops)
    return arena.weights.copy(), exchange.reducers.traffic().bytes_sent


@pytest.mark.parametrize("algorithm", [name for name in SCHEDULES if name != "recursive-doubling"])
def test_replicas_are_equal_and_half_the_bytes_are_sent(algorithm):
    def together(wire):
        return LoopbackWorld(5, 2).run(lambda t: trained(t, wire, algorithm=algorithm, bucket_bytes=300))

    (exact, whole), *_ = together("none")
    for wire, roundoff in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        ranks = together(wire)
        assert len({weights.tobytes() for weights, _ in ranks}) == 1
        assert ranks[0][1] == whole / 2
        error = np.abs(ranks[0][0] - exact).max()
        assert 0 < error < 20 * roundoff


def test_the_flag_offers_every_wire_and_ranks_that_do_not_round_are_exact_and_all_train():
    assert config_fields()["wire"].metadata["choices"] == WIRES
    assert not AllReduce(Loopback(), ReferenceOps("float32"), wire="float16").facts.exact
    exchange = AllReduce(LoopbackWorld(3).transport(0), ReferenceOps("float64"))
    assert exchange.facts.roles == Roles((0, 1, 2)) and exchange.denominator(5, 15) == 15
    assert exchange.facts.exact and exchange.facts.name == "allreduce" and exchange.prepare("graph") == "graph"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wire": "bfloat61"}, says("'bfloat61'", "did you mean 'bfloat16'")),
        ({"wire": "float16", "algorithm": "mpi"}, says("'mpi'", "wire")),
        ({"wire": "float16", "algorithm": "recursive-doubling"}, says("'recursive-doubling'")),
        ({"wire": "float16", "algorithm": "rign"}, "did you mean 'ring'"),
        ({"algorithm": "stat"}, "did you mean 'star'"),
    ],
)
def test_wires_and_algorithms_that_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        AllReduce(Loopback(), ReferenceOps("float32"), **options)


def test_a_wire_carries_sums_of_float32_alone():
    wire = make_wire("bfloat16", ReferenceOps("float32"))
    for dtype, algorithm, op, message in (
        ("f8", "ring", "sum", says("bfloat16", "float64")),
        ("f4", "ring", "max", says("bfloat16", "max")),
        ("f4", "mpi", "sum", says("'mpi'", "wire")),
    ):
        with pytest.raises(UsageError, match=message):
            make_allreduce(Loopback(), np.zeros(3, dtype), algorithm, np.add, op=op, wire=wire)


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
    arena = Arena(lambda count, dtype: np.zeros(count, dtype), TABLE, "float64")
    pieces = trained_pieces(arena.spans)
    assert pieces == [(0, arena.spans[1].stop), (arena.spans[3].start, arena.spans[4].stop)]
    arena.grad(arena.spans[0])[...] = 3
    arena.grad(arena.spans[2])[...] = 1000
    norm, optimizer = 3 * 35**0.5, make_optimizer("sgd", arena.spans, OptimizerConfig(momentum=0.0))
    update = OwnedUpdate(HOST, arena, optimizer, arena.grads, everything(arena), clip_norm=norm / 2)
    update.begin(1.0)
    update.apply()
    np.testing.assert_allclose(arena.weight(arena.spans[0]), -1.5, rtol=1e-12)
    np.testing.assert_allclose(arena.weight(arena.spans[2]), 1000 * TABLE[2][1].rate, rtol=1e-12)
