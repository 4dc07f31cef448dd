"""Gossip on graphs, and with an outer step, beside a simulation."""

import numpy as np
import pytest
from exchange_support import (
    LR,
    TABLE,
    bound,
    counted_through,
    goes_on_as_if_unbroken,
    gradient,
    iterate,
    local_step,
    over_arena,
)

from ringtrain.exchange.strategies.gossip_graphs import pairing, period
from ringtrain.memory.arena import lay_out
from tests.fakes.strategies import Gossip
from tests.fakes.transports import delaying
from tests.loopback.world import LoopbackWorld


def matrices_of(graph, size):
    """One a turn: [i, j] is how much rank i takes of rank j."""
    one = np.eye(size)
    if graph == "ring":
        return [(one + np.roll(one, 1, 0) + np.roll(one, -1, 0)) / 3]
    if graph == "exponential":
        return [(one + np.roll(one, 2**turn, 0)) / 2 for turn in range(2)]  # of 3 and 4 ranks
    matrices = [one.copy() for _ in range(period(size))]
    for turn, matrix in enumerate(matrices):
        for a, b in pairing(0, turn, size):
            matrix[np.ix_((a, b), (a, b))] = 0.5
    return matrices


def simulated(size, steps, matrices, every=1, outer=None):
    """The weights of each rank. outer: momentum, rate"""
    spans = lay_out(TABLE)
    roles = over_arena(spans, np.zeros)
    for span in spans:
        roles[span.start : span.stop] = span.parameter.role == "statistic"
    w = np.tile(counted_through(spans), (size, 1))
    v, phi, delta = np.zeros_like(w), w.copy(), np.zeros_like(w)
    for step in range(steps):
        matrix = np.asarray(matrices[step // every % len(matrices)])
        ends = (step + 1) % every == 0
        grads = [gradient(spans, rank, step) for rank in range(size)]  # at the weights before the mean
        if ends and not outer:
            w = matrix @ w
        for rank, g in enumerate(grads):
            local_step(spans, w[rank], v[rank], g, LR)
        if ends and outer:
            momentum, rate = outer
            delta = momentum * delta + rate * (matrix @ (w - phi)) - rate * (phi - matrix @ phi)
            phi = np.where(roles == 1, matrix @ w, phi + delta)
            w = phi.copy()
    return w


def iterated(t, steps, late=None, **options):
    exchange, arena = bound(Gossip, t if late is None else delaying(t, seed=late), **options)
    for iteration in range(steps):
        iterate(exchange, arena, t.rank, iteration, 1, t.size)
    return exchange, arena


def ends_of(size, steps=50, late=None, **options):
    """(weights, mean of all) of each rank"""

    def body(t):
        exchange, arena = iterated(t, steps, late, **options)
        weights = arena.weights.copy()
        exchange.synchronize()
        return weights, arena.weights.copy()

    return LoopbackWorld(size).run(body)


def assert_simulated(ranks, wanted):
    for rank, (weights, mean) in enumerate(ranks):
        np.testing.assert_allclose(weights, wanted[rank], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(mean, wanted.mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(("graph", "every"), [("pairs", 3), ("ring", 1), ("exponential", 1), ("exponential", 4)])
def test_weights_are_those_of_a_simulation(graph, every, size):
    flags = {"gossip_graph": graph, "gossip_every": every}
    assert_simulated(ends_of(size, late=every, **flags), simulated(size, 50, matrices_of(graph, size), every))


@pytest.mark.parametrize("size", [3, 4])  # of three one has no partner
@pytest.mark.parametrize(("graph", "outer"), [("pairs", (0.5, 0.7)), ("pairs", (0.0, 0.5)), ("ring", (0.3, 0.8))])
def test_an_outer_step_is_that_of_a_simulation(graph, outer, size):
    flags = {"gossip_every": 5, "gossip_graph": graph, "outer": outer}
    assert_simulated(ends_of(size, late=1, **flags), simulated(size, 50, matrices_of(graph, size), 5, outer))


def test_two_runs_have_the_same_bits():
    first, second = (ends_of(4, 20, late, gossip_graph="ring") for late in (1, 2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("graph", ["ring", "exponential"])
def test_two_ranks_are_a_pair(graph, size):
    np.testing.assert_array_equal(ends_of(size, 7, gossip_graph=graph), ends_of(size, 7))


@pytest.mark.parametrize(
    ("flags", "copies"),
    [
        ({"gossip_graph": "ring"}, (24, 24, 24)),
        ({"gossip_graph": "exponential"}, (12, 12, 12)),
        ({"gossip_graph": "ring", "gossip_every": 5}, (4, 4, 4)),
        ({"gossip_every": 4, "outer": (0.5, 0.7)}, (2, 2, 2)),
        ({}, (8, 8, 8)),
    ],
    ids=str,
)
def test_bytes_are_those_of_the_graph(flags, copies):
    ranks = LoopbackWorld(3).run(lambda t: iterated(t, 12, **flags))
    sent = [exchange.reducers.traffic().bytes_sent / (arena.count * 8) for exchange, arena in ranks]
    assert sent == [*copies]


@pytest.mark.parametrize("stop", [7, 10])
@pytest.mark.parametrize("flags", [{"gossip_graph": "ring"}, {"outer": (0.5, 0.7)}], ids=str)
def test_a_run_goes_on_as_if_unbroken(flags, stop):
    """In mid-period, and at the end of one; its checkpoint has the mean."""
    goes_on_as_if_unbroken(Gossip, 3, stop, 20, gossip_every=5, **flags)


@pytest.mark.parametrize(
    ("flags", "header"),
    [
        ({}, "up to 8 iterations apart"),
        ({"gossip_graph": "ring", "gossip_every": 4}, "graph ring, every 4, up to 8 iterations apart"),
        ({"outer": (0.5, 0.7)}, "outer momentum 0.5, rate 0.7, up to 8 iterations apart"),
        ({"window": 2}, "up to 2 iterations apart"),
    ],
)
def test_the_header_says_what_differs_from_pairs_each_iteration(flags, header):
    exchange, _ = LoopbackWorld(2).run(lambda t: bound(Gossip, t, **flags))[0]
    assert exchange.facts.header == header
