"""Gossip against its formula, on gradients of small whole numbers: meetings, means over all, what travels."""

from itertools import pairwise

import numpy as np
import pytest
from exchange_support import LR, all_alike, bound, gradient, iterate, run

from ringtrain.exchange import tags
from ringtrain.exchange.strategies.gossip_pairs import pairing, period
from ringtrain.transport.loopback import Loopback
from tests.fakes.strategies import AllReduce, Gossip
from tests.fakes.transports import delaying, recording
from tests.loopback.world import LoopbackWorld


def formula(size, iterations, seed=0, without=None):
    """Weights of each rank: means of pairs, then plain steps of the optimizer on each."""
    ranks = [bound(AllReduce, Loopback()) for _ in range(size)]
    for iteration in range(iterations):
        for a, b in pairing(seed, iteration, size):
            mean = (ranks[a][1].weights + ranks[b][1].weights) / 2
            ranks[a][1].weights[...] = ranks[b][1].weights[...] = mean
        for rank, (exchange, arena) in enumerate(ranks):
            if rank == without:
                continue
            arena.grads[...] = gradient(arena.spans, rank, iteration)
            exchange.finish(iteration, LR)
    return [exchange for exchange, _ in ranks], [arena.weights for _, arena in ranks]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("without", [None, 1])  # a rank without examples meets, and learns nothing
def test_an_iteration_is_a_mean_with_the_partner_and_an_own_update(size, late, without):
    def body(t):
        exchange, arena = bound(Gossip, delaying(t, seed=3) if late else t, seed=2)
        for iteration in range(7):
            iterate(exchange, arena, t.rank, iteration, int(t.rank != without), size)
        return arena.weights.copy()

    want = formula(size, 7, seed=2, without=without)[1]
    np.testing.assert_allclose(LoopbackWorld(size).run(body), want, rtol=1e-14, atol=1e-14)


def test_settling_shows_the_mean_of_all_once_and_a_state_is_the_mean_of_states():
    def body(t):
        exchange, arena = bound(Gossip, t)
        for iteration in range(5):
            iterate(exchange, arena, t.rank, iteration, 1, 3)
        before, slot = arena.weights.copy(), exchange._update.slots["momentum"].copy()
        exchange.synchronize()
        sent, weights = exchange.reducers.traffic().bytes_sent, arena.weights.copy()
        exchange.synchronize()
        assert exchange.reducers.traffic().bytes_sent == sent
        state = exchange.owned_state.state()
        np.testing.assert_array_equal(arena.weights, weights)
        exchange.before(5, 1, 3)
        np.testing.assert_array_equal(arena.weights, before)
        np.testing.assert_array_equal(exchange._update.slots["momentum"], slot)
        exchange.finish(5, 0.0)
        return weights, state

    weights, states = zip(*LoopbackWorld(3).run(body), strict=True)
    exchanges, want = formula(3, 5)
    assert len({each.tobytes() for each in weights}) == len({state["momentum"].tobytes() for state in states}) == 1
    np.testing.assert_allclose(weights[0], np.mean(want, axis=0), rtol=1e-13)
    momentum = np.mean([exchange.owned_state.state()["momentum"] for exchange in exchanges], axis=0)
    np.testing.assert_allclose(states[0]["momentum"], momentum, rtol=1e-13, atol=1e-14)
    assert states[0]["step"] == 5


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_meetings_keep_the_mean_and_bring_all_to_it(size):
    """Weights that differ, and an lr of nothing: to within a thousandth of how far apart they were."""
    rounds = 12 * period(size)

    def body(t):
        exchange, arena = bound(Gossip, t)
        arena.weights[...] = np.random.default_rng(t.rank).integers(-64, 65, arena.count)
        kept = [arena.weights.copy()]
        for iteration in range(rounds):
            exchange.before(iteration, 0, size)
            exchange.finish(iteration, LR)
            kept.append(arena.weights.copy())
        return np.array(kept)

    kept = np.array(LoopbackWorld(size).run(body))  # [rank, iteration, element]
    means = kept.mean(axis=0)
    np.testing.assert_allclose(means, np.broadcast_to(means[0], means.shape), rtol=0, atol=64 * 1e-14)
    spread = np.abs(kept - means).max(axis=(0, 2))
    assert spread[0] > 10 and spread[-1] < 1e-3 * spread[0]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(spread))
    if size == 4:
        assert spread[2] < 1e-12  # two meetings, with each of the other half


def test_a_rank_sends_its_weights_once_an_iteration_and_nothing_more():
    def body(t):
        seen, log = recording(t)
        exchange, arena = bound(Gossip, seen)
        for iteration in range(6):
            iterate(exchange, arena, t.rank, iteration, 1, 3)
        sends = [entry for entry in log if entry[0] == "send"]
        return exchange.reducers.traffic().bytes_sent, arena.count, sends

    for nbytes, count, sends in LoopbackWorld(3).run(body):
        assert nbytes == 4 * count * 8 and len(sends) == 4  # of six iterations it sits out two
        assert {entry[2:] for entry in sends} == {(count, tags.GOSSIP)}


def test_weights_travel_while_forward_and_backward_compute():
    def body(t):
        exchange, arena = bound(Gossip, t)
        exchange.before(0, 1, 2)
        arrived = False
        for _ in range(10_000):
            exchange.before_read(arena.spans[0])
            exchange.grad_ready(arena.spans[0])
            arrived = arrived or all(handle.test() for handle in exchange._partner_weights._in_flight)
            if arrived:
                break
        exchange.finish(0, LR)
        return arrived

    assert LoopbackWorld(2).run(body) == [True, True]


def test_nobody_waits_but_for_its_partner():
    """Of four ranks two train on while the others have not begun."""
    (pair, others), *_ = [pairing(0, 0, 4)]

    def body(t):
        exchange, arena = bound(Gossip, t)
        if t.rank in pair:
            iterate(exchange, arena, t.rank, 0, 1, 4)
        t.barrier()
        if t.rank in others:
            iterate(exchange, arena, t.rank, 0, 1, 4)
        return arena.weights.copy()

    np.testing.assert_array_equal(LoopbackWorld(4).run(body), formula(4, 1)[1])


def test_one_rank_alone_is_serial():
    (want, kept, _), *_ = run(AllReduce, 1)
    ranks = run(Gossip, 1)
    all_alike(ranks, want, kept)
    exchange = ranks[0][2]
    assert exchange.reducers.traffic().bytes_sent == 0 and exchange.denominator(3, 10) == 3


def test_how_far_ranks_may_be_apart():
    exchange, _ = bound(Gossip, Loopback(), window=3)
    assert (exchange.facts.max_iteration_lag, exchange.facts.dynamic_batches, exchange.facts.exact) == (3, False, False)
    exchange.reducers.close()
