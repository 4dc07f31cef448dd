"""Buckets under way, by a clock of our own: times of each, what the loop is held up by, and the thread."""

import subprocess
import sys
import threading

import pytest

from ringtrain.collectives.reduction import Reduction
from ringtrain.errors import TransportError
from ringtrain.exchange.buckets import Bucket
from ringtrain.exchange.flight import Flight
from ringtrain.exchange.meter import KEPT, Meter
from ringtrain.exchange.pacer import Pacer
from ringtrain.nn.base import Fill, Parameter, Span


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Slow(Reduction):
    """Takes so long from its start, and so much of its caller's time for a start, a look and the end of a wait."""

    algorithm, transport, bytes_sent = "slow", "none", 10

    def __init__(self, clock, seconds, start_s=0.25, look_s=0.125):
        self._clock, self._seconds, self._start_s, self._look_s = clock, seconds, start_s, look_s
        self.looks = 0

    def start(self):
        self._at = self._clock.now
        self._clock.now += self._start_s

    def test(self):
        self.looks += 1
        self._clock.now += self._look_s
        return self._clock.now >= self._at + self._seconds

    def wait(self, deadline_s):
        self._clock.now = max(self._clock.now, self._at + self._seconds)


def buckets(count):
    parameter = Parameter("weight", (16,), Fill("constant"))
    spans = [Span(f"{i}.weight", 16 * i, 16 * i + 16, (16,), parameter) for i in range(count)]
    return [Bucket(span.start, span.stop, (span,), 64) for span in reversed(spans)]


def test_times_add_up():
    """Two buckets, of 2 s and 3 s, while layers of 1 s compute."""
    clock = Clock()
    flight = Flight(buckets(2), [Slow(clock, 2), Slow(clock, 3)], 10.0, clock=clock)
    first, second = (bucket.spans[0] for bucket in flight.buckets)
    computed = held = 0.0
    for call, layer_s in ((lambda: flight.ready(first), 1), (lambda: flight.ready(second), 1), (flight.land, 0)):
        began = clock.now
        call()
        held += clock.now - began
        clock.now += layer_s
        computed += layer_s
    assert clock.now == computed + held and flight.exposed_s == held
    one, two = flight.traffic("gradients")
    assert (one.exposed_s + two.exposed_s, flight.bytes_sent) == (held, 20)
    # first: 0.25 + look, 1 s, (second starts) 0.25, look, look, 1 s, look: it has ended
    assert (one.total_s, one.exposed_s) == (0.25 + 0.125 + 1 + 0.25 + 0.125 + 0.125 + 1 + 0.125, 0.25 + 3 * 0.125)
    assert two.total_s == 3 and two.exposed_s == 3 - 0.125 - 1 - 0.125  # while first was looked at, and a layer
    assert (one.spans, two.spans, one.nbytes, one.what, one.algorithm) == (
        "1.weight",
        "0.weight",
        64,
        "gradients",
        "slow",
    )


def test_figures_are_medians_of_the_last_rounds():
    meter = Meter()
    assert (meter.total_s, meter.each_exposed_s) == (0, 0)
    for seconds in (100, 1, 2, 3, 1000):
        meter.start(50.0)
        meter.hold(seconds / 2)
        meter.end(50.0 + seconds)
    assert (meter.total_s, meter.each_exposed_s, meter.exposed_s) == (3, 1.5, 553)
    for _ in range(KEPT):
        meter.start(0.0)
        meter.end(7.0)
    assert (meter.total_s, meter.exposed_s) == (7, 553)


def test_the_thread_finishes_what_nobody_looks_at():
    done = threading.Event()

    class Signalling(Slow):
        def test(self):
            if super().test():
                done.set()
                return True
            return False

    clock, pacer = Clock(), Pacer()
    reduction = Signalling(clock, 5)
    flight = Flight(buckets(1), [reduction], 10.0, pacer=pacer, clock=clock)
    flight.ready(flight.buckets[0].spans[0])
    assert done.wait(10)
    flight.land()
    looks = reduction.looks
    flight.close()
    (traffic,) = flight.traffic("gradients")
    assert traffic.exposed_s == 0.25 and looks == 38  # the start alone; (5 - 0.25) / 0.125 looks held nobody up


def test_the_thread_rests_where_nothing_is_under_way():
    clock, pacer = Clock(), Pacer()
    reduction = Slow(clock, 0)
    flight = Flight(buckets(1), [reduction], 10.0, pacer=pacer, clock=clock)
    for _ in range(3):
        flight.land()
    with pacer.turn:
        pacer.look()
        assert not pacer._under_way.is_set()
    flight.close()
    assert reduction.looks == 3


def test_what_the_thread_meets_is_told_by_who_asks_next():
    class Failing(Slow):
        failed = threading.Event()

        def test(self):
            self.failed.set()
            raise TransportError("the cable is out")

    pacer = Pacer()
    flight = Flight(buckets(1), [Failing(Clock(), 1)], 10.0, pacer=pacer)
    flight.start()
    assert Failing.failed.wait(10)
    with pytest.raises(TransportError, match="the cable is out"):
        flight.land()
    flight.close()


def test_a_thread_that_nobody_ends_ends_with_the_process():
    program = (
        "from ringtrain.exchange.pacer import Pacer\n"
        "pacer = Pacer(); pacer.drive(lambda: True); pacer.wake()\n"
        "raise SystemExit(3)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=20).returncode == 3
