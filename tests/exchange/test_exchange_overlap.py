"""When gradients travel: what forward reads is up to date, in whatever order and however late messages come; one order
of starts on all ranks; what is said where it cannot be."""

import numpy as np
import pytest
from test_exchange_strategies import LR, bound

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


def forward(exchange, arena, need=True):
    """What a forward pass reads: a copy of each span's weights, when it is read."""
    read = []
    for span in arena.spans:
        if need:
            exchange.before_read(span)
        read.append(arena.weight(span).copy().reshape(-1))
    return np.concatenate(read)


def backward(exchange, arena, rank, iteration, order=None):
    rng = np.random.default_rng([rank, iteration])
    grads = {span.name: rng.integers(-8, 9, span.shape) for span in arena.spans}
    for span in order or reversed(arena.spans):
        arena.grad(span)[...] = grads[span.name]
        exchange.grad_ready(span)


def reads(make, size, need=True, wrap=lambda t: t, orders=None, iterations=ITERATIONS, **options):
    """What each rank's forward passes read, and the weights in the end."""

    def body(t):
        exchange, arena = bound(make, wrap(t), bucket_bytes=1, **options)
        found = []
        for iteration in range(iterations):
            exchange.before(iteration, 1, size)
            found.append(forward(exchange, arena, need))
            backward(exchange, arena, t.rank, iteration, orders and orders(t.rank, arena.spans))
            exchange.finish(iteration, LR)
        exchange.synchronize()
        found.append(forward(exchange, arena, need=False))
        exchange.reducers.close()
        return np.stack(found)

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
    for found in reads(make, size, overlap=overlap, **CAN[make]):
        np.testing.assert_array_equal(found, wanted[size])


@pytest.mark.parametrize("make", CAN)
def test_over_messages_that_end_late_and_gradients_in_any_order(wanted, make):
    def orders(rank, spans):
        return spans if rank % 2 else None

    for found in reads(make, 4, wrap=lambda t: delaying(t, seed=9), orders=orders, overlap="forward", **CAN[make]):
        np.testing.assert_array_equal(found, wanted[4])


@pytest.mark.parametrize(
    "make", [make for make in CAN if make is not ParameterServer]
)  # whose servers wait for no read
def test_who_reads_without_asking_reads_what_is_old(wanted, make):
    """So the tests above see a need() that was forgotten."""

    def body(t):
        seen = Shut(t, first=5)  # sums have tags 0 to 4, weights 5 to 9
        exchange, arena = bound(make, seen, algorithm="ring", bucket_bytes=1, overlap="forward", **CAN[make])
        exchange.before(0, 1, 2)
        backward(exchange, arena, t.rank, 0)
        exchange.finish(0, LR)
        found = forward(exchange, arena, need=False)
        seen.opened = True
        exchange.synchronize()
        return found, forward(exchange, arena, need=False)

    for rank, (old, new) in enumerate(LoopbackWorld(2).run(body)):
        assert (old != wanted[2][1]).any(), rank
        np.testing.assert_array_equal(new, wanted[2][1])


def test_forward_does_not_wait_for_who_is_late():
    """Rank 0 is through with its iteration before rank 1 has begun it."""

    def body(t):
        exchange, arena = bound(AllReduce, t, algorithm="ring", overlap="forward")
        if t.rank == 1:
            t.barrier()
        backward(exchange, arena, t.rank, 0)
        exchange.finish(0, LR)
        if t.rank == 0:
            t.barrier()
        exchange.synchronize()
        return arena.weights.tobytes()

    assert len(set(LoopbackWorld(2).run(body))) == 1


@pytest.mark.parametrize("make", CAN)
def test_a_state_is_that_of_all_updates(make):
    def body(t, overlap):
        exchange, arena = bound(make, t, overlap=overlap, **CAN[make])
        for iteration in range(2):
            exchange.before(iteration, 1, 2)
            forward(exchange, arena)
            backward(exchange, arena, t.rank, iteration)
            exchange.finish(iteration, LR)
        state = exchange.owned_state.state()
        return state, arena.weights.copy()

    for overlap in ("none", "forward"):
        (want, weights), *_ = LoopbackWorld(2).run(lambda t: body(t, "backward"))
        for state, found in LoopbackWorld(2).run(lambda t, o=overlap: body(t, o)):
            np.testing.assert_array_equal(found, weights)
            np.testing.assert_array_equal(state["momentum"], want["momentum"])


@pytest.mark.parametrize("make", CAN)
def test_a_rank_without_examples_settles_before_it_clears_its_gradients(make):
    """It makes no forward pass: zeros would be summed in place of what is under way. It waits for buckets in the order
    in which those wait that make one: a wait drives its own bucket alone, and messages want to be asked for often."""

    def body(t, overlap):
        late = delaying(t, seed=2, most=60)
        how = {"algorithm": "ring", "bucket_bytes": 1, "overlap": overlap}
        exchange, arena = bound(make, late, **how, **CAN[make])
        for iteration in range(3):
            without = t.rank == 1 and iteration == 1
            exchange.before(iteration, 0 if without else 1, 2)
            if without:
                arena.grads[...] = 0
                for span in reversed(arena.spans):
                    exchange.grad_ready(span)
            else:
                forward(exchange, arena)
                backward(exchange, arena, t.rank, iteration)
            exchange.finish(iteration, LR)
        exchange.synchronize()
        return arena.weights.copy()

    want, *_ = LoopbackWorld(2).run(lambda t: body(t, "backward"))
    for found in LoopbackWorld(2).run(lambda t: body(t, "forward")):
        np.testing.assert_array_equal(found, want)


def test_averaging_alone_is_as_ever():
    def body(t, overlap):
        exchange, arena = bound(Averaging, t, begin=2, every=2, overlap=overlap)
        for iteration in range(6):
            exchange.before(iteration, 1, 2)
            forward(exchange, arena)
            backward(exchange, arena, t.rank, iteration)
            exchange.finish(iteration, LR)
        exchange.synchronize()
        return arena.weights.copy()

    want, *_ = LoopbackWorld(2).run(lambda t: body(t, "backward"))
    for found in LoopbackWorld(2).run(lambda t: body(t, "forward")):
        np.testing.assert_array_equal(found, want)


# ── who starts when ───────────────────────────────────────────────────────────────────────────────────────────────────
def starts(overlap, make=AllReduce, **options):
    """Tags of messages in the order in which buckets started, of each rank in each iteration. Ranks announce gradients
    in different orders."""

    def body(t):
        seen, log = recording(t)
        exchange, arena = bound(make, seen, algorithm="ring", bucket_bytes=1, overlap=overlap, **options)
        found = []
        for iteration in range(ITERATIONS):
            forward(exchange, arena)
            log.clear()
            backward(exchange, arena, t.rank, iteration, arena.spans if t.rank % 2 else None)
            exchange.finish(iteration, LR)
            exchange.synchronize()
            found.append(list(dict.fromkeys(tag for verb, _, _, tag in log if verb == "send")))
        return found

    return LoopbackWorld(3).run(body)


@pytest.mark.parametrize("overlap", ["none", "backward", "forward"])
def test_buckets_start_in_one_order_on_all_ranks(overlap):
    assert starts(overlap) == [[[0, 1, 2, 3, 4]] * ITERATIONS] * 3


def test_with_none_nothing_starts_while_backward_runs():
    def body(t):
        seen, log = recording(t)
        exchange, arena = bound(AllReduce, seen, algorithm="ring", bucket_bytes=1, overlap="none")
        backward(exchange, arena, t.rank, 0)
        before = len(log)
        exchange.finish(0, LR)
        return before, len(log) > 0

    assert LoopbackWorld(2).run(body) == [(0, True)] * 2


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
    told = says("--overlap", "--clip-norm", "5")
    assert notes(AllReduce, overlap="forward", clip_norm=5.0) == [told]
    assert notes(AllReduce, overlap="backward", clip_norm=5.0) == notes(AllReduce, overlap="forward") == []

    def body(t, overlap):
        exchange, arena = bound(AllReduce, t, overlap=overlap, clip_norm=5.0)
        backward(exchange, arena, t.rank, 0)
        exchange.finish(0, LR)
        return arena.weights.tobytes()

    assert len({w for o in ("backward", "forward") for w in LoopbackWorld(2).run(lambda t, o=o: body(t, o))}) == 1


def test_sharded_clips_before_weights_travel():
    def body(t, make, overlap):
        exchange, arena = bound(make, t, overlap=overlap, clip_norm=5.0, bucket_bytes=1)
        backward(exchange, arena, t.rank, 0)
        exchange.finish(0, LR)
        exchange.synchronize()
        return arena.weights.copy()

    want, *_ = LoopbackWorld(3).run(lambda t: body(t, AllReduce, "backward"))
    for found in LoopbackWorld(3).run(lambda t: body(t, Sharded, "forward")):
        np.testing.assert_allclose(found, want, rtol=1e-12)
    assert len(notes(Sharded, overlap="forward", clip_norm=5.0)) == 1  # what memory it takes


def test_what_is_said_of_delayed_and_averaging():
    (said,) = notes(Delayed, overlap="forward")
    assert said == says("--overlap forward")
    no_overlap, mean = notes(Averaging, overlap="none")
    assert no_overlap == says("--overlap none", "--average-from") and says("evaluations", "checkpoints").matches(mean)
    assert notes(Averaging, overlap="forward", begin=3) == [mean]
