"""Buckets under way, by a clock of our own: times of each, and what the loop is held up by."""

from dataclasses import dataclass, field

import pytest

from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.errors import StalledError
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.streams import StreamPair, stream_pair
from ringtrain.exchange.buckets.timings import KEPT, BucketTimer
from ringtrain.nn.base import Fill, Parameter, Span
from ringtrain.nn.buckets import Bucket
from ringtrain.ops.reference import ReferenceOps
from tests.says import says


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
    flight = Reducer(buckets(2), [Slow(clock, 2), Slow(clock, 3)], 10.0, stream_pair(ReferenceOps()), clock=clock)
    first, second = (bucket.spans[0] for bucket in flight.buckets)
    computed = waited = 0.0
    for call, layer_s in (
        (lambda: flight.grad_ready(first), 1),
        (lambda: flight.grad_ready(second), 1),
        (flight.wait_all, 0),
    ):
        began = clock.now
        call()
        waited += clock.now - began
        clock.now += layer_s
        computed += layer_s
    assert clock.now == computed + waited and flight.exposed_s == waited
    one, two = flight.traffic("gradients")
    assert (one.exposed_s + two.exposed_s, flight.bytes_sent) == (waited, 20)
    # first: 0.25 + look, 1 s, (second starts) 0.25, look, look, 1 s, look: it has ended
    assert (one.total_s, one.exposed_s) == (0.25 + 0.125 + 1 + 0.25 + 0.125 + 0.125 + 1 + 0.125, 0.25 + 3 * 0.125)
    assert two.total_s == 3 and two.exposed_s == 3 - 0.125 - 1 - 0.125  # while first was looked at, and a layer
    assert (one.spans, two.spans, one.nbytes) == ("1.weight", "0.weight", 64)
    assert (one.what, one.algorithm) == ("gradients", "slow")


# ── on a device ───────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass
class Device:
    """As far as ``performed``; ``orders`` is what it was told to wait for."""

    performed: int = 0
    issued: int = 0
    orders: list = field(default_factory=list)

    def mark(self):
        return Point(self, self.issued)

    def after(self, mark):
        self.orders.append(mark)


@dataclass
class Point:
    device: Device
    at: int

    def done(self):
        return self.device.performed >= self.at

    def wait(self):
        self.device.performed = max(self.device.performed, self.at)


class Logged(Slow):
    """Writes down what becomes of it, under its name."""

    def __init__(self, log, name, clock, seconds, blocks=False):
        super().__init__(clock, seconds)
        self._log, self._name, self.blocks = log, name, blocks

    def announce(self):
        self._log.append(f"announce {self._name}")

    def start(self):
        self._log.append(f"start {self._name}")
        super().start()


def on_device(*blocking):
    """(flight of three buckets of 1 s, the network's device, the exchange's, log): nothing has been computed."""
    clock, log, network, exchange = Clock(), [], Device(), Device()
    runs = [Logged(log, i, clock, 1, i in blocking) for i in range(3)]
    return Reducer(buckets(3), runs, 5.0, StreamPair(network, exchange), clock=clock), network, exchange, log


def announce_all(flight, network, performed=None):
    """Issue what makes each bucket final, and announce it; before the last the device has ``performed`` so much."""
    for i, bucket in enumerate(flight.buckets):
        network.issued = i + 1
        if performed and i == len(flight.buckets) - 1:
            network.performed = performed
        flight.grad_ready(bucket.spans[0])


def test_a_bucket_starts_when_the_device_has_made_it_final():
    flight, network, _, log = on_device()
    announce_all(flight, network)
    assert log == ["announce 0", "announce 1", "announce 2"] and not flight.bytes_sent
    network.performed = 2
    flight.test()
    assert log[3:] == ["start 0", "start 1"] and flight.bytes_sent == 20
    network.performed = 3
    flight.test()
    assert log[5:] == ["start 2"]


def test_a_bucket_that_is_final_at_once_does_not_overtake_those_that_were_not():
    """The device makes all final between two looks."""
    flight, network, _, log = on_device()
    announce_all(flight, network, performed=3)
    assert log == [*(f"announce {i}" for i in range(3)), *(f"start {i}" for i in range(3))]


def test_what_a_device_has_to_make_final_first_holds_nobody_up():
    """Who waits for the first bucket while the device makes the others final starts those: on nobody's account."""
    flight, network, exchange, log = on_device()
    exchange.issued = 7

    class Working(Slow):
        def test(self):
            network.performed += 1
            return super().test()

    flight.reductions[0] = Working(flight._clock, 50)
    announce_all(flight, network)
    network.performed = 1
    flight.arrive(0)
    assert log == ["announce 1", "announce 2", "start 1", "start 2"]
    assert flight.timers[1].exposed_s == flight.timers[2].exposed_s == 0
    (joined,) = network.orders
    assert (joined.device, joined.at) == (exchange, 7)


def test_a_device_that_never_makes_a_bucket_final_is_told_of():
    flight, network, _, _ = on_device()
    network.issued = 1
    flight._deadline_s = 0.01
    with pytest.raises(StalledError, match=says("0.01 s", "device", "2.weight")):
        flight.wait_all()


def test_a_call_of_the_mpi_waits_for_the_device_and_comes_in_its_turn():
    flight, network, _, log = on_device(1)
    announce_all(flight, network)
    assert log == ["announce 0", "start 0", "start 1", "announce 2"] and network.performed == 2


def test_figures_are_medians_of_the_last_rounds():
    meter = BucketTimer()
    assert (meter.total_s, meter.each_exposed_s) == (0, 0)
    for seconds in (100, 1, 2, 3, 1000):
        meter.start(50.0, 3)
        meter.add_exposed(seconds / 2)
        meter.end(50.0 + seconds)
    assert (meter.total_s, meter.each_exposed_s, meter.exposed_s, meter.bytes_sent) == (3, 1.5, 553, 15)
    for _ in range(KEPT):
        meter.start(0.0, 0)
        meter.end(7.0)
    assert (meter.total_s, meter.exposed_s) == (7, 553)
