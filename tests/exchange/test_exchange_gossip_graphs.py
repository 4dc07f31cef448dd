"""Gossip on graphs, with push weights and with an outer step, beside a simulation; files of matrices, and refusals."""

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

from ringtrain.errors import UsageError
from ringtrain.exchange.strategies.gossip_graphs import read_matrices
from ringtrain.exchange.strategies.gossip_pairs import pairing, period
from ringtrain.memory.arena import lay_out
from tests.fakes.strategies import Gossip
from tests.fakes.transports import delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says

PUSHED = {  # two turns, of which neither reaches all; in the columns is all that a rank has, in the rows is not
    3: [[[0.5, 0, 0.25], [0.5, 1, 0], [0, 0, 0.75]], [[1, 0.125, 0], [0, 0.5, 0], [0, 0.375, 1]]],
    4: [
        [[0.5, 0, 0, 0.25], [0.25, 1, 0, 0.25], [0.25, 0, 0.5, 0], [0, 0, 0.5, 0.5]],
        [[1, 0.5, 0.25, 0], [0, 0.5, 0, 0], [0, 0, 0.5, 0], [0, 0, 0.25, 1]],
    ],
}
TWICE = [[[0.75, 0.25, 0], [0, 0.75, 0.25], [0.25, 0, 0.75]], [[1, 0, 0], [0, 0.6, 0.4], [0, 0.4, 0.6]]]


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
    """(weights and push weight) of each rank. outer: momentum, rate, consensus rate"""
    spans = lay_out(TABLE)
    roles = over_arena(spans, np.zeros)
    for span in spans:
        roles[span.start : span.stop] = span.parameter.role == "statistic"
    w, push = np.tile(counted_through(spans), (size, 1)), np.ones(size)
    v, phi, delta = np.zeros_like(w), w.copy(), np.zeros_like(w)
    for step in range(steps):
        matrix = np.asarray(matrices[step // every % len(matrices)])
        ends = (step + 1) % every == 0
        grads = [gradient(spans, rank, step) for rank in range(size)]  # at the weights before the mean
        if ends and not outer:
            before, push = push, matrix @ push
            w = np.array([sum(matrix[i, j] * before[j] * w[j] for j in range(size)) / push[i] for i in range(size)])
        for rank, g in enumerate(grads):
            local_step(spans, w[rank], v[rank], g, LR / push[rank])
        if ends and outer:
            momentum, rate, consensus = outer
            delta = momentum * delta + rate * (matrix @ (w - phi)) - consensus * (phi - matrix @ phi)
            phi = np.where(roles == 1, matrix @ w, phi + delta)
            w = phi.copy()
    return w, push


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


def assert_simulated(ranks, wanted, push):
    for rank, (weights, mean) in enumerate(ranks):
        np.testing.assert_allclose(weights, wanted[rank], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(mean, push @ wanted / len(push), rtol=1e-12, atol=1e-12)


@pytest.fixture
def file_of(tmp_path):
    def write(matrices):
        np.save(tmp_path / "graph.npy", matrices)
        return str(tmp_path / "graph.npy")

    return write


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(("graph", "every"), [("pairs", 3), ("ring", 1), ("exponential", 1), ("exponential", 4)])
def test_weights_are_those_of_a_simulation(graph, every, size):
    flags = {"gossip_graph": graph, "gossip_every": every}
    assert_simulated(ends_of(size, late=every, **flags), *simulated(size, 50, matrices_of(graph, size), every))


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("every", [1, 3])
def test_weights_that_are_pushed_are_those_of_a_simulation(size, every, file_of):
    wanted, push = simulated(size, 50, PUSHED[size], every)
    assert np.ptp(push) > 0.3
    assert_simulated(ends_of(size, gossip_graph=file_of(PUSHED[size]), gossip_every=every), wanted, push)


def test_a_matrix_whose_rows_sum_to_1_needs_no_push_weights(file_of):
    flags = {"gossip_graph": file_of(TWICE), "gossip_every": 2}
    assert_simulated(ends_of(3, **flags), *simulated(3, 50, TWICE, 2))
    states = LoopbackWorld(3).run(lambda t: iterated(t, 1, **flags)[0].owned_state.rank_state.arrays())
    assert "push_weights" not in states[0]


@pytest.mark.parametrize("size", [3, 4])  # of three one has no partner
@pytest.mark.parametrize(
    ("graph", "outer"),
    [("pairs", (0.5, 0.7, 0.7)), ("pairs", (0.5, 0.7, 0.9)), ("pairs", (0.0, 1.0, 0.0)), ("ring", (0.3, 0.8, 0.5))],
)
def test_an_outer_step_is_that_of_a_simulation(graph, outer, size):
    momentum, rate, consensus = outer
    flags = {"gossip_every": 5, "gossip_graph": graph, "outer": (momentum, rate)}
    flags |= {} if consensus == rate else {"consensus_rate": consensus}
    wanted = simulated(size, 50, matrices_of(graph, size), 5, outer)
    assert_simulated(ends_of(size, late=1, **flags), *wanted)


def test_two_runs_have_the_same_bits(file_of):
    flags = {"gossip_graph": file_of(PUSHED[4])}
    first, second = (ends_of(4, 20, late, **flags) for late in (1, 2))
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
        ({"gossip_every": 4, "outer": (0.5, 0.7), "consensus_rate": 0.9}, (2, 2, 2)),
        ({}, (8, 8, 8)),
        ({"gossip_graph": PUSHED[3]}, (6, 12, 6)),
    ],
    ids=str,
)
def test_bytes_are_those_of_the_graph(flags, copies, file_of):
    if not isinstance(flags.get("gossip_graph", ""), str):
        flags = {"gossip_graph": file_of(flags["gossip_graph"])}
    ranks = LoopbackWorld(3).run(lambda t: iterated(t, 12, **flags))
    sent = [exchange.reducers.traffic().bytes_sent / (arena.count * 8) for exchange, arena in ranks]
    assert sent == [*copies]


@pytest.mark.parametrize("stop", [7, 10])
@pytest.mark.parametrize("kind", ["pushed", "outer"])
def test_a_run_goes_on_as_if_unbroken(kind, stop, file_of):
    """In mid-period, and at the end of one; its checkpoint has the mean."""
    of_kind = {
        "pushed": {"gossip_graph": file_of(PUSHED[3])},
        "outer": {"outer": (0.5, 0.7), "consensus_rate": 0.9},
    }
    goes_on_as_if_unbroken(Gossip, 3, stop, 20, gossip_every=5, **of_kind[kind])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.5 0.5\n0.5 0.5", says("2 rows of 2", "3 ranks", "3 rows of 3")),
        ("1 0 0\n0 1 0\n0 0 1\n1 0 0", says("4 rows of 3", "3 rows of 3")),
        ("1 0 0\n0 1 0\n0 0 x", says("no file of a matrix", "x")),
        ("0.5 0 0.5\n0.5 1 0.5\n0 -0.5 0.5", says("row 2, column 1", "-0.5")),
        ("0.5 0 0.5\n0.5 1 0.5\n0 nan 0.5", says("row 2, column 1", "nan")),
        ("0.5 0 1\n0.5 1 0\n0 0 0", says("row 2, column 2 is 0")),
        ("0.5 0 0\n0.5 1 0.5\n0 0 0.5", says("rank 1", "never reach rank 0")),
        ("0.5 0 0\n0.4 1 0.5\n0 0 0.5", says("column 0", "0.9", "1")),
        ("1 0 0\n0 1 0\n0 0 1\n1 0 0\n0 .5 0\n0 .25 1", says("turn 2", "column 1", "0.75")),
        (None, says("ring", "exponential", "none.txt")),
    ],
)
def test_a_file_that_is_no_graph_is_refused(tmp_path, text, words):
    path = tmp_path / ("none.txt" if text is None else "graph.txt")
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_matrices(str(path), 3)
    assert words.matches(str(raised.value)) and str(path) in str(raised.value), raised.value


def test_text_is_a_matrix_whose_columns_are_made_to_sum_to_1(tmp_path):
    (tmp_path / "thirds").write_text("# all\n" + "0.333333 0.333333 0.333333\n" * 3)
    np.testing.assert_allclose(read_matrices(str(tmp_path / "thirds"), 3), np.full((1, 3, 3), 1 / 3), rtol=1e-15)


def test_an_outer_step_needs_rows_that_sum_to_1(file_of):
    path = file_of(PUSHED[3])
    with pytest.raises(UsageError) as raised:
        LoopbackWorld(3).run(lambda t: bound(Gossip, t, gossip_graph=path, outer=(0.5, 1.0)))
    assert says("--outer-momentum", path, "row").matches(str(raised.value))


@pytest.mark.parametrize(
    ("flags", "header"),
    [
        ({}, "up to 8 iterations apart"),
        ({"gossip_graph": "ring", "gossip_every": 4}, "graph ring, every 4, up to 8 iterations apart"),
        ({"outer": (0.5, 0.7)}, "outer momentum 0.5, rate 0.7, up to 8 iterations apart"),
        (
            {"consensus_rate": 0.0, "window": 2},
            "outer momentum 0, rate 1, consensus rate 0.0, up to 2 iterations apart",
        ),
    ],
)
def test_the_header_says_what_differs_from_pairs_each_iteration(flags, header):
    exchange, _ = LoopbackWorld(2).run(lambda t: bound(Gossip, t, **flags))[0]
    assert exchange.facts.header == header
