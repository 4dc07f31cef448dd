"""Streams between ranks: what is sent, and what is made of the times."""

import itertools

import numpy as np
import pytest

from ringtrain.bench.measure import round_trips
from ringtrain.bench.measure.round_trips import WINDOW, stream, sustained_s
from tests.fakes.transports import recording
from tests.loopback.world import LoopbackWorld


@pytest.mark.parametrize("count", [1, WINDOW - 1, WINDOW, 3 * WINDOW + 1])
def test_a_stream_sends_and_receives_so_many_messages(count):
    def body(transport):
        noted, log = recording(transport)
        out, into = np.full(8, transport.rank, np.uint8), np.zeros(8, np.uint8)
        stream(noted, (transport.rank + 1) % 3, (transport.rank - 1) % 3, out, into, 5)(count)
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
        stream(noted, *ends, out, into, 5)(7)
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
        (lambda count: 1e-9 * count, 1e-9, 2 * round_trips.MOST_MESSAGES),
    ],
)
def test_the_seconds_of_a_message_in_a_long_stream(monkeypatch, seconds_of, message_s, longest):
    played = []

    def timed(transport, action, delay_s=0.0):
        action()
        return seconds_of(played[-1])

    monkeypatch.setattr(round_trips, "timed", timed)
    (found,) = LoopbackWorld(1).run(lambda transport: sustained_s(transport, played.append))
    assert found == pytest.approx(message_s) and longest in (None, max(played))
