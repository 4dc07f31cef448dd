"""Links between ranks: who sends to whom, what streams send, what is made of the times, and who stands out."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.bench.measure import links, timing
from ringtrain.bench.measure.buffers import Buffers
from ringtrain.bench.measure.links import BETWEEN, INSIDE, WINDOW, neighbours, pair_of, sharing, sick, worst_pairs
from ringtrain.collectives.topology import Topology
from tests.fakes.transports import recording
from tests.loopback.world import LoopbackWorld
from tests.says import says


@pytest.mark.parametrize("count", [1, WINDOW - 1, WINDOW, 3 * WINDOW + 1])
def test_a_stream_sends_and_receives_so_many_messages(count):
    def body(transport):
        noted, log = recording(transport)
        out, into = np.full(8, transport.rank, np.uint8), np.zeros(8, np.uint8)
        ends = (transport.rank + 1) % 3, (transport.rank - 1) % 3
        links.stream(noted, ends, (out, into), 5)(count)
        return log, into[0]

    for rank, (log, arrived) in enumerate(LoopbackWorld(3).run(body)):
        assert log.count(("send", (rank + 1) % 3, 8, 5)) == log.count(("recv", (rank - 1) % 3, 8, 5)) == count
        assert len(log) == 2 * count and arrived == (rank - 1) % 3
        # Never more under way than the window: receives are posted first, and as many as there may be.
        assert [verb for verb, *_ in log[:2]] == ["recv", "send"]


def test_one_way_only():
    def body(transport):
        noted, log = recording(transport)
        out, into = np.ones(8, np.uint8), np.zeros(8, np.uint8)
        ends = [(1, None), (None, 0), (None, None)][transport.rank]
        links.stream(noted, ends, (out, into), 5)(7)
        return [verb for verb, *_ in log], into[0]

    assert LoopbackWorld(3).run(body) == [(["send"] * 7, 0), (["recv"] * 7, 1), ([], 0)]


NOISE = itertools.cycle([0.3, 0.0, 0.1])


@pytest.mark.parametrize(
    ("seconds_of", "message_s", "longest"),
    [
        # 0.01 s to begin, then the first 30 messages at once, and then 1 ms each; 0.05 s at least: 4, 8, 16, ... 128.
        (lambda count: 0.01 + 0.001 * max(count - 30, 0), 0.001, 2 * 128),
        # A disturbance of the shorter stream makes no link faster, and the least disturbed of several counts.
        (lambda count: 0.256 if count == 64 else 0.001 * count, 0.001, None),
        (lambda count: 0.001 * count + next(NOISE), 0.001, None),
        # A link that is never slow is not streamed through for ever.
        (lambda count: 1e-9 * count, 1e-9, 2 * links.MOST_MESSAGES),
    ],
)
def test_the_seconds_of_a_message_in_a_long_stream(monkeypatch, seconds_of, message_s, longest):
    played = []

    def timed(transport, action):
        action()
        return seconds_of(played[-1])

    monkeypatch.setattr(links, "timed", timed)
    (measured_s,) = LoopbackWorld(1).run(lambda transport: links.sustained_s(transport, played.append))
    assert measured_s == pytest.approx(message_s) and longest in (None, max(played))


# ── beside computing ──────────────────────────────────────────────────────────────────────────────────────────
class Clockwork:
    """A rank whose clock runs while it works, or looks at a message, which takes ``look_s``."""

    rank, activity = 0, SimpleNamespace(touch=lambda: None)

    def __init__(self, look_s):
        self.now, self.look_s, self.started = 0.0, look_s, 0

    def barrier(self):
        pass

    def gather_json(self, figures):
        return [figures, None]  # another rank has no peer

    def work(self):
        self.now += 1.0


class LateMessage:
    """It arrives at its second look."""

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
    for module in (links, timing):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    both = [[LateMessage(clock) for _ in range(WINDOW)] for _ in range(2)]
    core_s, beside_s = links.beside_computing_s(clock, both, 8, clock.work)
    assert clock.started == links.BESIDE_REPEATS * 2 * 8
    assert core_s == 2 * 2 * look_s  # two looks at a message sent, and two at one received
    assert beside_s == core_s + 9 / 8  # each is seen a piece of work after the one before, and the first after two


def test_it_is_of_messages_between_nodes(short_streams):
    def figures(transport):
        measured = links.calibrate(transport, 0, Buffers(transport))
        return measured.core_s_per_byte, measured.beside_s_per_byte

    assert LoopbackWorld(2).run(figures) == [(0.0, 0.0)] * 2
    first, *others = LoopbackWorld(3, nodes=2).run(figures)  # one rank has no peer on the other node
    assert others == [first] * 2 and first[1] > 0


# ── who sends to whom, and who stands out ─────────────────────────────────────────────────────────────────────
def test_layouts_name_pairs_and_neighbours_and_streams_share_a_node():
    topology = Topology(((0, 1, 4), (2, 3)))
    assert (pair_of(topology, INSIDE), pair_of(topology, BETWEEN)) == ((0, 1), (0, 2))
    assert [neighbours(topology, INSIDE, rank) for rank in (0, 1, 4)] == [(1, 4), (4, 0), (0, 1)]
    assert [neighbours(topology, BETWEEN, rank) for rank in (0, 2, 4)] == [(2, 2), (0, 0), (None, None)]
    assert pair_of(Topology(((0,), (1,))), INSIDE) is None and pair_of(Topology(((0, 1),)), BETWEEN) is None
    nodes = [((0, 1, 2),), ((0, 1), (2, 3), (4,)), ((0, 1, 2, 3), (4, 5, 6)), ((0,), (1,))]
    assert [sharing(Topology(each)) for each in nodes] == [1, 2, 3, 1]


def test_the_worst_pair_and_the_sick_rank_or_host():
    rates = {(0, 1): 9, (0, 2): 2, (0, 3): 8, (1, 2): 1, (1, 3): 7, (2, 3): 3}
    rows = [{"first": a, "second": b, "latency_s": a + b, "bytes_per_s": rate} for (a, b), rate in rates.items()]
    worst = worst_pairs(rows)
    assert (worst["latency"]["first"], worst["latency"]["second"]) == (2, 3)
    assert (worst["bandwidth"]["first"], worst["bandwidth"]["second"]) == (1, 2)
    assert sick(rows, ["a"] * 4) == [says("rank 2", "4.0"), says("rank 3", "2.0")]
    assert sick(rows[:1], ["a", "a"]) == []  # of two, who would it be?
    hosts = ["a", "a", "b", "b", "c"]
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    rows = [{"first": i, "second": j, "latency_s": 1.0, "bytes_per_s": 90.0} for i, j in pairs]
    assert sick(rows, hosts) == []
    for row in rows:
        touched = hosts[row["first"]], hosts[row["second"]]
        if touched == ("b", "b"):
            row["bytes_per_s"] = 9000.0  # inside it all is well
        elif "b" in touched:
            row["bytes_per_s"] = 30.0
    assert sick(rows, hosts) == [says("b", "3.0")]
