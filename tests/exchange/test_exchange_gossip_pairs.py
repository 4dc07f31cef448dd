"""Pairings as data: matchings of two halves, everybody with everybody they can meet, equally often; how far apart."""

import random
from collections import Counter

import pytest

from ringtrain.exchange.strategies.gossip_pairs import pairing, partners, period

SIZES = range(1, 14)


@pytest.mark.parametrize("size", SIZES)
def test_pairs_are_a_matching_of_all_ranks_but_the_one_that_sits_out(size):
    for iteration in range(3 * size):
        pairs = pairing(7, iteration, size)
        ranks = [rank for pair in pairs for rank in pair]
        assert len(pairs) == size // 2 and len(set(ranks)) == len(ranks) and set(ranks) <= set(range(size))


@pytest.mark.parametrize("size", [size for size in SIZES if size % 2 == 0])
def test_an_even_number_makes_a_bipartite_graph_in_which_each_pair_meets_once_a_period(size):
    met = Counter(pair for iteration in range(period(size)) for pair in pairing(3, iteration, size))
    assert met == Counter((a, b) for a in range(0, size, 2) for b in range(1, size, 2))


@pytest.mark.parametrize("size", [size for size in SIZES if size % 2])
def test_in_an_odd_number_all_meet_once_a_period_and_each_sits_out_once(size):
    rounds = [pairing(3, iteration, size) for iteration in range(period(size))]
    met = Counter(frozenset(pair) for pairs in rounds for pair in pairs)
    assert met == Counter(frozenset((a, b)) for a in range(size) for b in range(a))
    out = [set(range(size)) - {rank for pair in pairs for rank in pair} for pairs in rounds]
    assert sorted(rank for left in out for rank in left) == list(range(size))


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
