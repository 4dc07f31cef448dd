"""Sums of shards in one tree: bitwise the same weights at any number of ranks, whatever carries them and when."""

import numpy as np
import pytest
from exchange_support import bound

from ringtrain.errors import ConfigError
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.monitor.guard import Guard
from ringtrain.ops.reference import ReferenceOps
from ringtrain.transport.loopback import Loopback
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.strategies import AllReduce, settings_of
from tests.fakes.transports import DeviceTransport, delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says

BATCH = 64
FLOAT = ReferenceOps("float32")


def gradient(shard, iteration, span):
    return np.random.default_rng([shard, iteration, span.start]).standard_normal(span.stop - span.start).astype("f4")


def iterate(exchange, arena, ops, iteration, total=BATCH, shards=8):
    """As a worker does: a shard without examples has no forward pass, and no gradient."""
    start, stop = exchange.facts.shards
    sizes = {shard: (shard + 1) * total // shards - shard * total // shards for shard in range(start, stop)}
    exchange.before(iteration, sum(sizes.values()), total)
    for shard, examples in sizes.items():
        for span in arena.spans if examples else ():
            exchange.before_read(span)
        for span in reversed(arena.spans):
            values = gradient(shard, iteration, span)
            ops.upload(values if examples else np.zeros_like(values), arena.grads[span.start : span.stop])
            exchange.shard_grad_ready(span)
            if shard == stop - 1:
                exchange.grad_ready(span)
    exchange.finish(iteration, 0.125)


def train(transport, ops=FLOAT, iterations=2, shards=8, total=BATCH, make=AllReduce, **options):
    exchange, arena = bound(make, transport, ops=ops, shards=shards, **options)
    for iteration in range(iterations):
        iterate(exchange, arena, ops, iteration, total, shards)
    exchange.synchronize()
    weights = ops.to_host(arena.weights).tobytes()
    exchange.reducers.close()
    return weights


def alone(**options):
    return train(Loopback(), **options)


def together(size, nodes=1, **options):
    """The weights of all ranks, once, if they are the same."""
    weights = set(LoopbackWorld(size, nodes).run(lambda t: train(t, **options)))
    assert len(weights) == 1
    return weights.pop()


@pytest.mark.parametrize(
    ("size", "learning", "travel"),
    [
        *((size, {}, [{}, {"algorithm": "canonical", "bucket_bytes": 300}]) for size in range(2, 9)),
        *((size, {"shards": 7}, [{}, {"nodes": 2, "bucket_bytes": 1}]) for size in (2, 3, 5, 7)),
        (3, {"shards": 16}, [{}, {"algorithm": "canonical"}]),  # three partials
        *(
            (size, {"iterations": 3}, [{"overlap": overlap, "bucket_bytes": 64, **algorithm}])
            for size in (2, 3)
            for overlap in ("none", "forward")
            for algorithm in ({}, {"algorithm": "canonical"})
        ),
        (4, {}, [{"algorithm": "mapped"}]),
    ],
)
def test_any_number_of_ranks_has_the_same_bits(size, learning, travel):
    """In shared memory and over messages, and whenever buckets travel."""
    want = alone(**learning)
    assert all(together(size, segment_bytes=64, **learning, **options) == want for options in travel)


def test_bits_depend_on_the_number_of_shards():
    assert len({alone(shards=shards) for shards in (7, 8, 16)}) == 3


def test_the_sum_is_the_tree_of_shards():
    exchange, arena = bound(AllReduce, Loopback(), ops=FLOAT, shards=8)
    iterate(exchange, arena, FLOAT, 0)
    for span in arena.spans:
        g = [gradient(shard, 0, span) for shard in range(8)]
        want = ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + (g[6] + g[7]))
        assert arena.grads[span.start : span.stop].tobytes() == want.tobytes()


@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_fewer_examples_than_shards(overlap):
    """Shards without examples come first; nobody needs weights for them, whose update may be left to forward."""
    want = alone(total=5, iterations=3)
    assert together(3, total=5, overlap=overlap, iterations=3) == want != alone(iterations=3)


def test_messages_that_end_late_and_a_device_that_computes_later():
    assert set(LoopbackWorld(3).run(lambda t: train(delaying(t, seed=3), algorithm="canonical"))) == {alone()}

    def body(t):
        ops = FakeGpuOps(dtype="float32")
        return train(DeviceTransport(t, ops), ops, bucket_bytes=300)

    assert set(LoopbackWorld(3).run(body)) == {alone()}


def test_ranks_of_a_node_that_share_nothing_send_messages():
    def body(t):
        exchange, arena = bound(AllReduce, t, ops=FLOAT, shards=8)
        iterate(exchange, arena, FLOAT, 0)
        return arena.weights.tobytes(), exchange.facts.notes[0]

    for weights, note in LoopbackWorld(3, shares=False).run(body):
        assert weights == alone(iterations=1)
        assert note == says("8 shards", "canonical over messages", "buffer", "share")


@pytest.mark.parametrize(
    ("size", "nodes", "algorithm", "how", "what"),
    [
        (1, 1, "auto", says("canonical over messages", "one rank"), ("canonical", "messages")),
        (3, 1, "auto", says("memory", "share"), ("canonical", "mapped")),
        (3, 2, "mapped", says("canonical over messages", "2 nodes"), ("canonical", "messages")),
        (4, 1, "canonical", says("canonical over messages", "--algorithm"), ("canonical", "messages")),
    ],
)
def test_how_is_chosen_by_rule_and_told(size, nodes, algorithm, how, what):
    def body(t):
        exchange, _ = bound(AllReduce, t, ops=FLOAT, shards=8, algorithm=algorithm)
        (sums,) = exchange.reducers.training.values()
        facts, reduction = exchange.facts, sums.reductions[0]
        return facts.notes, facts.header, facts.exact, (reduction.algorithm, reduction.transport)

    wanted = ([says("8 shards", how)], "reproducible over 8 shards", True, what)
    assert LoopbackWorld(size, nodes).run(body) == [wanted] * size


def test_under_a_guard_and_from_a_configuration():
    def make(t, ops, **options):
        exchange = make_exchange(settings_of(t, ops, guard=Guard(t), **options))
        assert exchange.facts.shards == ((0, 3), (3, 7))[t.rank]
        return exchange

    assert together(2, shards=7, make=make) == alone(shards=7)
    assert make_exchange(settings_of(Loopback(), FLOAT)).facts.shards is None


def test_slots_are_no_more_than_the_tree_is_high():
    """Eight shards on one rank: three arrays. On two, two; on eight, none."""

    def body(t):
        exchange, arena = bound(AllReduce, t, ops=FLOAT, shards=8)
        return exchange.facts.state_bytes / arena.grads.nbytes - 1  # of momentum

    assert [LoopbackWorld(size).run(body)[0] for size in (1, 2, 4, 8)] == [3, 2, 1, 0]


def test_more_ranks_than_shards_are_refused():
    with pytest.raises(ConfigError, match=says("--reproducible", "--shards", 8, 9)):
        LoopbackWorld(9).run(lambda t: AllReduce(t, FLOAT, shards=8))
