"""Messages beside computing: how long they take, and how much longer computing does."""

from types import SimpleNamespace

import pytest

from ringtrain.bench.measure import round_trips, timing
from ringtrain.bench.measure.buffers import HostBuffers
from ringtrain.bench.measure.round_trips import BESIDE_REPEATS, beside_computing_s
from ringtrain.bench.model.calibration import calibrate
from tests.loopback.world import LoopbackWorld


class Clockwork:
    """A rank whose messages arrive at their second look, each of which takes ``look_s``."""

    rank, activity = 0, SimpleNamespace(touch=lambda: None)

    def __init__(self, look_s):
        self.now, self.look_s, self.started = 0.0, look_s, 0

    def sends(self, moves, tag):
        return Looked(self)

    recvs = sends

    def barrier(self):
        pass

    def gather_json(self, own):
        return [own, None]  # another rank has no peer

    def work(self):
        self.now += 1.0


class Looked:
    def __init__(self, clock):
        self._clock = clock

    def start(self):
        self._clock.started += 1
        self._looks = 0

    def test(self):
        self._looks += 1
        self._clock.now += self._clock.look_s
        return self._looks == 2


@pytest.mark.parametrize("look_s", [0.0, 0.125])
def test_it_is_the_time_by_which_work_takes_longer(monkeypatch, look_s):
    clock = Clockwork(look_s)
    for module in (round_trips, timing):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    core_s, beside_s = beside_computing_s(clock, 1, 1, None, None, 0, 8, clock.work)
    assert clock.started == BESIDE_REPEATS * 2 * 8
    assert core_s == 2 * 2 * look_s  # two looks at a message sent, and two at one received
    assert beside_s == core_s + 9 / 8  # each is seen a piece of work after the one before, and the first after two


def test_it_is_of_messages_between_nodes(short_streams):
    def figures(transport):
        found = calibrate(transport, 0, HostBuffers(transport))
        return found.core_s_per_byte, found.beside_s_per_byte

    assert LoopbackWorld(2).run(figures) == [(0.0, 0.0)] * 2
    first, *others = LoopbackWorld(3, nodes=2).run(figures)  # one rank has no peer on the other node
    assert others == [first] * 2 and first[1] > 0
