"""A rank made slower: each call takes as many times as long as it did."""

import pytest

from ringtrain.bench.slow import Slowed
from ringtrain.bench.sweep import Sweep, sweep
from ringtrain.bench.timing import Protocol
from ringtrain.errors import StalledError
from ringtrain.transport.loopback import LoopbackWorld


class Clock:
    """Time that passes by being looked at, a little, and by work."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


class Work:
    """Done after so many calls, each of which takes a second."""

    algorithm = "work"

    def __init__(self, clock: Clock, calls: int):
        self._clock, self._calls, self.moved = clock, calls, 0

    def start(self) -> None:
        self._clock.now += 1.0

    def test(self) -> bool:
        self._clock.now += 1.0
        self.moved += 1
        return self.moved >= self._calls


@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_starting_and_asking_take_as_many_times_as_long(factor):
    clock = Clock()
    slowed = Slowed(Work(clock, 3), factor, clock)
    slowed.start()
    slowed.wait(10.0)
    assert clock.now == pytest.approx(4 * factor, abs=1e-4)


def test_who_is_waited_for_in_vain_is_named():
    with pytest.raises(StalledError, match="waiting for the other ranks of stuck"):
        Slowed(Stuck(), 2.0).wait(0.001)


class Stuck:
    algorithm, moved = "stuck", 0

    def test(self) -> bool:
        return False


def test_a_slow_rank_is_measured_beside_the_others_and_the_mpi_cannot_be_slowed():
    protocol = Protocol(repeats=3, warm_up=0, slow_rank=1, slow_times=5.0)
    asked = Sweep(sizes=(4000,), algorithms=("mpi", "ring"), protocol=protocol)
    mpi, ring = LoopbackWorld(2).run(lambda transport: sweep(transport, asked))[0].rows
    assert (mpi["slow_times"], mpi["slow_median_s"], mpi["slow_cost"]) == (None, None, None)
    assert ring["slow_times"] == 5.0 and ring["slow_cost"] == ring["slow_median_s"] / ring["median_s"] > 0
    assert ring["late_cost"] is None
