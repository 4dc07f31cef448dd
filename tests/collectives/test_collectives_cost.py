"""The predicted time, against closed forms. Costs are whole numbers, so that sums are exact."""

from dataclasses import replace

import pytest

from ringtrain.collectives.catalogue import SCHEDULES, make_schedule
from ringtrain.collectives.inspect.cost import Cost, Fabric, least_s, schedule_cost
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.collectives.topology import even, filled
from ringtrain.errors import ScheduleError, UsageError
from tests.says import says

ALPHA, BETA, GAMMA, O = 3.0, 5.0, 7.0, 11.0  # noqa: E741
FABRIC = Fabric(ALPHA, BETA, 1.0, 2.0, GAMMA, O)
WIRE = Fabric(0.0, 1.0, 0.0, 0.0, 0.0, 0.0)  # nothing but the interfaces takes time


def seconds(name, topology, nbytes, fabric=FABRIC):
    return schedule_cost(make_schedule(name, topology), topology, nbytes, fabric).seconds


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_one_rank_a_node(p):
    n, alone = 60.0 * p, even(p, p)
    share = n / p
    assert seconds("ring", alone, n) == (p - 1) * (2 * (O + share * BETA + ALPHA) + share * GAMMA)
    additions = (p - 1) * share * GAMMA
    assert seconds("sliced", alone, n) == pytest.approx(2 * ((p - 1) * (O + share * BETA) + ALPHA) + additions)
    root = (p - 1) * (O + n * BETA + ALPHA + n * GAMMA) + (p - 1) * (O + n * BETA) + ALPHA
    assert seconds("star", alone, n) == root
    # Within a node other rates hold.
    assert seconds("ring", even(p), n) == (p - 1) * (2 * (O + share * 2 + 1) + share * GAMMA)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_powers_of_two(levels):
    p = 1 << levels
    n, alone = 64.0, even(p, p)
    whole = O + n * BETA + ALPHA
    assert seconds("recursive-doubling", alone, n) == levels * (whole + n * GAMMA)
    assert seconds("tree", alone, n) == pytest.approx(
        levels * (whole + n * GAMMA) + levels * (O + n * BETA) + levels * ALPHA
    )
    rounds = 2 * levels * (O + ALPHA) + (p - 1) / p * n * (2 * BETA + GAMMA)
    assert seconds("butterfly", alone, n) == rounds
    # The circulant's chunks that go around the end of the buffer are messages of their own.
    assert seconds("circulant", alone, n, replace(FABRIC, o_s=0.0)) == rounds - 2 * levels * O


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 1), (2, 4), (3, 2), (4, 4)])
def test_ranks_share_their_nodes_interface(nodes, ranks):
    topology, n = even(nodes * ranks, nodes), 48.0 * nodes * ranks
    for name in ("hierarchical", "hierarchical:tree:ring"):
        schedule = make_schedule(name, topology)
        cost = schedule_cost(schedule, topology, n, WIRE)
        assert cost.seconds == least_s(schedule, topology, n, WIRE) == 2 * (nodes - 1) / nodes * n
        assert cost.interface == (2 * (nodes - 1) / nodes * n,) * nodes
    # Every rank of a node exchanges whole buffers with another node at once: they queue.
    if nodes == 2:
        assert seconds("recursive-doubling", topology, n, WIRE) == ranks * n


def test_the_root_of_the_star_is_where_time_goes():
    n, times = 1000.0, [seconds("star", even(p, p), 1000.0, WIRE) for p in (2, 4, 8)]
    assert times == [2 * n, 6 * n, 14 * n]
    assert [seconds("ring", even(p, p), n, WIRE) for p in (2, 4, 8)] == [n, 1.5 * n, 1.75 * n]


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_beats_the_bound(name):
    for topology in (even(4), even(4, 4), even(8, 2), filled((4, 2, 3))):
        schedule = make_schedule(name, topology)
        cost = schedule_cost(schedule, topology, 1 << 20, Fabric(gamma_s=0.0))
        assert cost.seconds >= least_s(schedule, topology, 1 << 20, Fabric())
        assert min(cost.sent) > 0
    alone = make_schedule("ring", 1)
    assert schedule_cost(alone, even(1), 100, FABRIC) == Cost(0.0, (0.0,), (0.0,))
    assert least_s(alone, even(1), 100, FABRIC) == 0


@pytest.mark.parametrize("goal", ["reduce-scatter", "all-gather"])
@pytest.mark.parametrize("name", ["ring", "sliced", "circulant"])
def test_half_of_it_takes_half_the_time(name, goal):
    half = make_schedule(name, even(4, 4), goal)
    assert schedule_cost(half, even(4, 4), 400.0, WIRE).seconds == least_s(half, even(4, 4), 400.0, WIRE) == 300.0


def test_deadlocks_and_times_that_cannot_be():
    steps = [[Step(recvs=(Move(1 - rank, 0, 1),)), Step(sends=(Move(1 - rank, 0, 1),))] for rank in range(2)]
    stuck = Schedule("stuck", 2, 1, lambda rank: steps[rank], lambda rank: 1)
    with pytest.raises(ScheduleError, match=says(f"{stuck!r}")):
        schedule_cost(stuck, even(2), 8, FABRIC)
    with pytest.raises(UsageError, match=says("beta_s", -1.0)):
        replace(FABRIC, beta_s=-1.0)
    with pytest.raises(UsageError, match=says("alpha_s", "nan")):
        replace(FABRIC, alpha_s=float("nan"))
