"""Gossip against its formula, on gradients of small whole numbers: meetings, means over all, what travels."""

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from exchange_support import LR, all_alike, bound, gradient, iterate, run, seen_aside

from ringtrain.exchange import tags
from ringtrain.exchange.strategies.gossip_graphs import pairing, partners, period
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
        _, _, weights, state = seen_aside(exchange, arena, 5, 1, 3)
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
            arrived = arrived or all(handle.test() for handle in exchange._partners._in_flight)
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


SIZES = range(1, 14)


@pytest.mark.parametrize("size", SIZES)
def test_in_a_period_each_pair_meets_once(size):
    """An even number of ranks makes a bipartite graph; of an odd one each sits out once."""
    rounds = [pairing(3, iteration, size) for iteration in range(period(size))]
    met = Counter(frozenset(pair) for pairs in rounds for pair in pairs)
    out = Counter()
    for pairs in rounds:
        ranks = {rank for pair in pairs for rank in pair}
        assert len(pairs) == size // 2 and len(ranks) == 2 * len(pairs) and ranks <= set(range(size))
        out.update(set(range(size)) - ranks)
    if size % 2:
        assert met == Counter(frozenset((a, b)) for a in range(size) for b in range(a)) and out == Counter(range(size))
    else:
        assert met == Counter(frozenset((a, b)) for a in range(0, size, 2) for b in range(1, size, 2))
        assert all(a % 2 == 0 for pairs in rounds for a, _ in pairs)


@pytest.mark.parametrize("size", [size for size in SIZES if size > 1])
def test_what_one_rank_knows_reaches_all_in_two_periods(size):
    for start in range(period(size)):
        knowing = {0}
        for iteration in range(start, start + 2 * period(size)):
            knowing |= {r for pair in pairing(1, iteration, size) if knowing & set(pair) for r in pair}
        assert len(knowing) == size


def test_the_seed_gives_the_order_and_nothing_else_does():
    orders = {seed: tuple(pairing(seed, i, 12) for i in range(period(12))) for seed in range(20)}
    assert len(set(orders.values())) > 10
    assert all(sorted(order) == sorted(orders[0]) for order in orders.values())
    assert [pairing(5, i, 12) for i in range(6)] == [pairing(5, i + 6, 12) for i in range(6)]


def test_both_partners_know_of_one_another():
    assert partners(0, 0, 1) == [None] and partners(0, 9, 2) == [1] and partners(1, 9, 2) == [0]
    for size in SIZES:
        everyone = [partners(rank, 4, size) for rank in range(size)]
        for turn in range(period(size)):
            pairs = pairing(4, turn, size)
            met = {rank: partner for a, b in pairs for rank, partner in ((a, b), (b, a))}
            assert [plan[turn] for plan in everyone] == [met.get(rank) for rank in range(size)]


@pytest.mark.parametrize("size", range(2, 10))
def test_ranks_that_nothing_else_holds_are_no_more_than_their_number_apart(size):
    """One rank moves only when no other can; it never locks."""
    for seed in range(10):
        plans = [partners(rank, seed, size) for rank in range(size)]
        rng, begun, slow = random.Random(seed), [0] * size, seed % size
        for _ in range(300):
            free = [rank for rank in range(size) if _partner_is_there(plans, begun, rank)]
            assert free
            begun[rng.choice([rank for rank in free if rank != slow] or free)] += 1
            assert max(begun) - min(begun) <= size


def _partner_is_there(plans, begun, rank) -> bool:
    partner = plans[rank][begun[rank] % len(plans[rank])]
    return partner is None or begun[partner] >= begun[rank]
