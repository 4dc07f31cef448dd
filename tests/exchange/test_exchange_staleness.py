"""Bounded staleness, over every order in which a few workers can come."""

import random

import pytest

from ringtrain.exchange.servers.staleness import StalenessClock


def arrive(clock, worker):
    clock.arrive(worker)
    return clock.release()


def replayed(size, staleness, order):
    """A clock after these arrivals, each followed by a release; and the workers that wait."""
    clock, waiting = StalenessClock(range(size), staleness), set()
    for worker in order:
        waiting.add(worker)
        waiting -= set(arrive(clock, worker))
    return clock, waiting


def every_order(size, staleness, steps):
    """Every order of so many arrivals of workers that do not wait."""
    orders = [()]
    for _ in range(steps):
        each = ((order, replayed(size, staleness, order)[1]) for order in orders)
        orders = [(*order, worker) for order, waiting in each for worker in range(size) if worker not in waiting]
    return orders


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize(("size", "steps"), [(1, 6), (2, 8), (3, 6)])
def test_every_order_of_arrivals_keeps_the_rules(size, steps, staleness):
    for order in every_order(size, staleness, steps):
        clock, waiting = replayed(size, staleness, order)
        assert clock.clocks == {worker: order.count(worker) for worker in range(size)}
        for worker, updates in clock.clocks.items():
            ahead = updates - clock.slowest
            assert ahead <= staleness + 1  # one that is held has given the update that it is held for
            assert (worker in waiting) == (ahead > staleness)
            assert (worker in waiting) == bool(clock.late(updates))
        assert len(waiting) < size  # somebody can always go on
        assert max(clock.clock_lags, default=0) <= staleness
        assert sum(clock.version_lags.values()) == clock.version == len(order)
        assert sum(clock.clock_lags.values()) == len(order) - len(waiting)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_bound_is_reached_and_not_passed_by_random_walks(staleness):
    for seed in range(20):
        rng, clock, waiting = random.Random(seed), StalenessClock(range(4), staleness), set()
        weights = [1, 5, 25, 125]  # workers of very different speed
        for _ in range(300):
            free = [worker for worker in range(4) if worker not in waiting]
            (worker,) = rng.choices(free, [weights[worker] for worker in free])
            waiting.add(worker)
            waiting -= set(arrive(clock, worker))
        assert max(clock.clock_lags) == staleness
        assert max(clock.clocks.values()) - clock.slowest <= staleness + 1


def test_who_is_held_goes_on_in_the_order_of_coming():
    clock = StalenessClock([4, 2, 7], 1)
    assert arrive(clock, 7) == [7] and arrive(clock, 7) == []
    assert arrive(clock, 2) == [2] and arrive(clock, 2) == []
    assert clock.late(2) == [4] and not clock.allows(2) and clock.allows(1)
    assert arrive(clock, 4) == [7, 2, 4]
    assert clock.clock_lags == {0: 1, 1: 4} and clock.late(2) == []


def test_version_lag_counts_the_updates_of_others_between_taking_and_giving():
    clock = StalenessClock(range(3), None)
    for worker in (0, 1, 0, 0, 2, 1):
        assert arrive(clock, worker) == [worker]
    assert clock.version_lags == {0: 2, 1: 2, 4: 1, 3: 1}
    assert clock.clocks == {0: 3, 1: 2, 2: 1}


def test_a_worker_that_is_held_cannot_give():
    clock = StalenessClock(range(2), 0)
    arrive(clock, 1)
    with pytest.raises(ValueError, match="worker 1 is held at clock 1, and gave another update"):
        clock.arrive(1)
