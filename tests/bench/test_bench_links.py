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


def taking(monkeypatch, seconds_of):
    """Streams take ``seconds_of(count)``; the counts that were played."""
    played = []

    def timed(transport, action, delay_s=0.0):
        action()
        return seconds_of(played[-1])

    monkeypatch.setattr(round_trips, "timed", timed)
    return played


def sustained(played) -> float:
    return LoopbackWorld(1).run(lambda transport: sustained_s(transport, played.append))[0]


def test_neither_a_first_burst_nor_the_start_counts(monkeypatch):
    """0.01 s to begin, then the first 30 messages at once, and then 1 ms each."""
    played = taking(monkeypatch, lambda count: 0.01 + 0.001 * max(count - 30, 0))
    assert sustained(played) == pytest.approx(0.001)
    assert max(played) == 2 * 128  # the shorter stream takes 0.05 s at least: 4, 8, 16, ... 128 messages


def test_a_disturbed_shorter_stream_makes_no_link_faster(monkeypatch):
    played = taking(monkeypatch, lambda count: 0.256 if count == 64 else 0.001 * count)
    assert sustained(played) == pytest.approx(0.001)


def test_the_least_disturbed_of_several_counts(monkeypatch):
    noise = itertools.cycle([0.3, 0.0, 0.1])
    played = taking(monkeypatch, lambda count: 0.001 * count + next(noise))
    assert sustained(played) == pytest.approx(0.001)


def test_a_link_that_is_never_slow_is_not_streamed_through_for_ever(monkeypatch):
    played = taking(monkeypatch, lambda count: 1e-9 * count)
    assert sustained(played) == pytest.approx(1e-9)
    assert max(played) == 2 * round_trips.MOST_MESSAGES
