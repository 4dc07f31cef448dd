"""When gradients travel: what forward reads is up to date, in whatever order and however late messages come; one order
of starts on all ranks; what is said where it cannot be."""

import numpy as np
import pytest
from exchange_support import LR, backward, bound, each_equal, forward, gradient

from tests.fakes.strategies import AllReduce, Averaging, Delayed, ParameterServer, Sharded
from tests.fakes.transports import Shut, delaying, recording
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid

ITERATIONS = 7
CAN = {
    AllReduce: {},
    Sharded: {},
    Averaging: {"begin": 100},  # gradients are summed in all iterations
    ParameterServer: {},
}


def passes(exchange, arena, rank, iteration, examples=1, order=None, asks=True):
    """An iteration; return what its forward pass reads. Without examples there is none, and gradients are zero."""
    exchange.before(iteration, examples, 2)
    read = forward(exchange, arena, asks) if examples else None
    if not examples:
        arena.grads[...] = 0
    backward(exchange, arena, examples * gradient(arena.spans, rank, iteration), order)
    exchange.finish(iteration, LR)
    return read


def reads(make, size, wrap=lambda t: t, orders=None, **options):
    """What each rank's forward passes read, and the weights in the end."""

    def body(t):
        exchange, arena = bound(make, wrap(t), bucket_bytes=1, **options)
        order = orders and orders(t.rank, arena.spans)
        read = [passes(exchange, arena, t.rank, iteration, order=order) for iteration in range(ITERATIONS)]
        exchange.synchronize()
        read.append(forward(exchange, arena, asks=False))
        exchange.reducers.close()
        return np.stack(read)

    return LoopbackWorld(size).run(body)


@pytest.fixture(scope="module")
def wanted():
    """By number of ranks: what all-reduce reads when every update is waited for."""
    return {size: reads(AllReduce, size)[0] for size in (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("size", "overlap", "make"),
    grid(
        lambda size, overlap, make: size == 3 or overlap == "forward",
        [1, 2, 3, 4],
        ["none", "backward", "forward"],
        CAN,
    ),
)
def test_forward_reads_weights_that_are_up_to_date(wanted, make, overlap, size):
    each_equal(reads(make, size, overlap=overlap, **CAN[make]), wanted[size])


@pytest.mark.parametrize("make", CAN)
def test_over_messages_that_end_late_and_gradients_in_any_order(wanted, make):
    late = {"wrap": lambda t: delaying(t, seed=9), "orders": lambda rank, spans: spans if rank % 2 else None}
    each_equal(reads(make, 4, overlap="forward", **late, **CAN[make]), wanted[4])


@pytest.mark.parametrize(
    "make", [make for make in CAN if make is not ParameterServer]
)  # whose servers wait for no read
def test_who_reads_without_asking_reads_what_is_old(wanted, make):
    """So the tests above see a need() that was forgotten."""

    def body(t):
        seen = Shut(t, first=5)  # sums have tags 0 to 4, weights 5 to 9
        exchange, arena = bound(make, seen, algorithm="ring", bucket_bytes=1, overlap="forward", **CAN[make])
        passes(exchange, arena, t.rank, 0, asks=False)
        read = forward(exchange, arena, asks=False)
        seen.opened = True
        exchange.synchronize()
        return read, forward(exchange, arena, asks=False)

    for rank, (old, new) in enumerate(LoopbackWorld(2).run(body)):
        assert (old != wanted[2][1]).any(), rank
        np.testing.assert_array_equal(new, wanted[2][1])


def test_forward_does_not_wait_for_who_is_late():
    """Rank 0 is through with its iteration before rank 1 has begun it."""

    def body(t):
        exchange, arena = bound(AllReduce, t, algorithm="ring", overlap="forward")
        if t.rank == 1:
            t.barrier()
        passes(exchange, arena, t.rank, 0, asks=False)
        if t.rank == 0:
            t.barrier()
        exchange.synchronize()
        return arena.weights.tobytes()

    assert len(set(LoopbackWorld(2).run(body))) == 1


def trained(make, overlap, iterations=2, without=None, wrap=lambda t: t, **options):
    """(weights, state) of each of two ranks; rank 1 has no example in iteration ``without``."""

    def body(t):
        exchange, arena = bound(make, wrap(t), overlap=overlap, **options)
        for iteration in range(iterations):
            passes(exchange, arena, t.rank, iteration, int(t.rank != 1 or iteration != without))
        exchange.synchronize()
        weights = arena.weights.copy()
        return weights, exchange.owned_state.state()

    return LoopbackWorld(2).run(body)


@pytest.mark.parametrize("make", CAN)
def test_a_state_is_that_of_all_updates(make):
    (weights, want), *_ = trained(make, "backward", **CAN[make])
    for overlap in ("none", "forward"):
        for other, state in trained(make, overlap, **CAN[make]):
            np.testing.assert_array_equal(other, weights)
            np.testing.assert_array_equal(state["momentum"], want["momentum"])


@pytest.mark.parametrize("make", CAN)
def test_a_rank_without_examples_settles_before_it_clears_its_gradients(make):
    """It makes no forward pass: zeros would be summed in place of what is under way. It waits for buckets in the order
    in which those wait that make one: a wait drives its own bucket alone, and messages want to be asked for often."""
    options = {"wrap": lambda t: delaying(t, seed=2, most=60), "algorithm": "ring", "bucket_bytes": 1, **CAN[make]}
    want, ranks = (trained(make, overlap, 3, without=1, **options) for overlap in ("backward", "forward"))
    each_equal([weights for weights, _ in ranks], want[0][0])


def test_averaging_alone_is_as_ever():
    want, ranks = (trained(Averaging, overlap, 6, begin=2, every=2) for overlap in ("backward", "forward"))
    each_equal([weights for weights, _ in ranks], want[0][0])


# ── who starts when ───────────────────────────────────────────────────────────────────────────────────────────────────
def starts(overlap, make=AllReduce, **options):
    """Tags of messages in the order in which buckets started, of each rank in each iteration. Ranks announce gradients
    in different orders."""

    def body(t):
        seen, log = recording(t)
        exchange, arena = bound(make, seen, algorithm="ring", bucket_bytes=1, overlap=overlap, **options)
        tags = []
        for iteration in range(ITERATIONS):
            forward(exchange, arena)
            log.clear()
            backward(exchange, arena, gradient(arena.spans, t.rank, iteration), arena.spans if t.rank % 2 else None)
            exchange.finish(iteration, LR)
            exchange.synchronize()
            tags.append(list(dict.fromkeys(tag for verb, _, _, tag in log if verb == "send")))
        return tags

    return LoopbackWorld(3).run(body)


@pytest.mark.parametrize("overlap", ["none", "backward", "forward"])
def test_buckets_start_in_one_order_on_all_ranks(overlap):
    assert starts(overlap) == [[[0, 1, 2, 3, 4]] * ITERATIONS] * 3


@pytest.mark.parametrize(
    ("make", "overlap", "started"),
    [(AllReduce, "backward", {0, 1}), (Sharded, "backward", {0, 1}), (AllReduce, "none", set())],
)
def test_a_bucket_starts_when_the_last_gradient_before_it_is_final_and_not_before(make, overlap, started):
    def body(t):
        seen, log = recording(t)
        exchange, arena = bound(make, seen, algorithm="ring", bucket_bytes=1, overlap=overlap)
        *_, b, c = arena.spans
        exchange.grad_ready(b)
        before = len(log)
        exchange.grad_ready(c)
        tags = {tag for *_, tag in log}
        exchange.finish(0, LR)
        return before, tags, len(log) > 0

    assert LoopbackWorld(2).run(body) == [(0, started, True)] * 2


def test_sharded_hands_round_the_lowest_layers_first():
    for rank in starts("forward", Sharded):
        for order in rank:  # sums have tags 0 to 4, weights 5 to 9
            assert order == [0, 1, 2, 3, 4, 9, 8, 7, 6, 5]


# ── where it cannot be ────────────────────────────────────────────────────────────────────────────────────────────────
def notes(make, size=2, **options):
    def body(t):
        exchange, _ = bound(make, t, algorithm="ring", **options)
        exchange.reducers.close()
        return list(exchange.facts.notes)

    return LoopbackWorld(size).run(body)[0]


def test_clipping_needs_every_gradient_first():
    assert notes(AllReduce, overlap="forward", clip_norm=5.0) == [says("--overlap", "--clip-norm", "5")]
    assert notes(AllReduce, overlap="backward", clip_norm=5.0) == notes(AllReduce, overlap="forward") == []
    assert len(notes(Sharded, overlap="forward", clip_norm=5.0)) == 1  # what memory it takes
    (want, _), *_ = trained(AllReduce, "backward", 1, clip_norm=5.0)
    each_equal([weights for weights, _ in trained(AllReduce, "forward", 1, clip_norm=5.0)], want)
    each_equal([weights for weights, _ in trained(Sharded, "forward", 1, clip_norm=5.0, bucket_bytes=1)], want, 1e-12)


def test_what_is_said_of_delayed_and_averaging():
    (note,) = notes(Delayed, overlap="forward")
    assert note == says("--overlap forward")
    no_overlap, mean = notes(Averaging, overlap="none")
    assert no_overlap == says("--overlap none", "--average-from") and says("evaluations", "checkpoints").matches(mean)
    assert notes(Averaging, overlap="forward", begin=3) == [mean]
