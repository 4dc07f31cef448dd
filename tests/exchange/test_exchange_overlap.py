"""When gradients travel: what forward reads is up to date, in whatever order and however late messages come; one order
of starts on all ranks; what is said where it cannot be; times of buckets, and what the loop is held up by."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from exchange_support import LR, backward, bound, each_equal, forward, gradient

from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.errors import StalledError
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.streams import StreamPair, stream_pair
from ringtrain.exchange.buckets.timings import BucketTimer
from ringtrain.memory.buckets import Bucket
from ringtrain.memory.spans import Fill, Parameter, Span
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.strategies import AllReduce, Averaging, Delayed, ParameterServer, Sharded
from tests.fakes.transports import Shut, delaying, recording
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid

ITERATIONS = 7
CAN = {
    AllReduce: {},
    Sharded: {},
    Averaging: {"begin": 100},  # gradients are summed in all iterations
    ParameterServer: {},
}


def passes(exchange, arena, rank, iteration, examples=1, order=None, asks=True):
    """An iteration; return what its forward pass reads. Without examples there is none, and gradients are zero."""
    exchange.before(iteration, examples, 2)
    read = forward(exchange, arena, asks) if examples else None
    if not examples:
        arena.grads[...] = 0
    backward(exchange, arena, examples * gradient(arena.spans, rank, iteration), order)
    exchange.finish(iteration, LR)
    return read


def reads(make, size, wrap=lambda t: t, orders=None, **options):
    """What each rank's forward passes read, and the weights in the end."""

    def body(t):
        exchange, arena = bound(make, wrap(t), bucket_bytes=1, **options)
        order = orders and orders(t.rank, arena.spans)
        read = [passes(exchange, arena, t.rank, iteration, order=order) for iteration in range(ITERATIONS)]
        exchange.synchronize()
        read.append(forward(exchange, arena, asks=False))
        exchange.reducers.close()
        return np.stack(read)

    return LoopbackWorld(size).run(body)


@pytest.fixture(scope="module")
def wanted():
    """By number of ranks: what all-reduce reads when every update is waited for."""
    return {size: reads(AllReduce, size)[0] for size in (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("size", "overlap", "make"),
    grid(
        lambda size, overlap, make: size == 3 or overlap == "forward",
        [1, 2, 3, 4],
        ["none", "backward", "forward"],
        CAN,
    ),
)
def test_forward_reads_weights_that_are_up_to_date(wanted, make, overlap, size):
    each_equal(reads(make, size, overlap=overlap, **CAN[make]), wanted[size])


@pytest.mark.parametrize("make", CAN)
def test_over_messages_that_end_late_and_gradients_in_any_order(wanted, make):
    late = {"wrap": lambda t: delaying(t, seed=9), "orders": lambda rank, spans: spans if rank % 2 else None}
    each_equal(reads(make, 4, overlap="forward", **late, **CAN[make]), wanted[4])


@pytest.mark.parametrize(
    "make", [make for make in CAN if make is not ParameterServer]
)  # whose servers wait for no read
def test_who_reads_without_asking_reads_what_is_old(wanted, make):
    """So the tests above see a need() that was forgotten."""

    def body(t):
        seen = Shut(t, first=5)  # sums have tags 0 to 4, weights 5 to 9
        exchange, arena = bound(make, seen, algorithm="ring", bucket_bytes=1, overlap="forward", **CAN[make])
        passes(exchange, arena, t.rank, 0, asks=False)
        read = forward(exchange, arena, asks=False)
        seen.opened = True
        exchange.synchronize()
        return read, forward(exchange, arena, asks=False)

    for rank, (old, new) in enumerate(LoopbackWorld(2).run(body)):
        assert (old != wanted[2][1]).any(), rank
        np.testing.assert_array_equal(new, wanted[2][1])


def test_owners_of_slices_update_before_the_next_forward_pass():
    """They serve no other rank in it: a layer that waits for another's statistics would hold weights back."""

    def body(t):
        exchange, arena = bound(Sharded, delaying(t, seed=3), algorithm="ring", bucket_bytes=1, overlap="forward")
        passes(exchange, arena, t.rank, 0, asks=False)
        owned = np.concatenate([np.arange(*piece) for piece in exchange._update.pieces])
        updated = arena.weights[owned]
        exchange.synchronize()
        return (updated == arena.weights[owned]).all()

    assert LoopbackWorld(2).run(body) == [True, True]


def test_forward_does_not_wait_for_who_is_late():
    """Rank 0 is through with its iteration before rank 1 has begun it."""

    def body(t):
        exchange, arena = bound(AllReduce, t, algorithm="ring", overlap="forward")
        if t.rank == 1:
            t.barrier()
        passes(exchange, arena, t.rank, 0, asks=False)
        if t.rank == 0:
            t.barrier()
        exchange.synchronize()
        return arena.weights.tobytes()

    assert len(set(LoopbackWorld(2).run(body))) == 1


def trained(make, overlap, iterations=2, without=None, wrap=lambda t: t, **options):
    """(weights, state) of each of two ranks; rank 1 has no example in iteration ``without``."""

    def body(t):
        exchange, arena = bound(make, wrap(t), overlap=overlap, **options)
        for iteration in range(iterations):
            passes(exchange, arena, t.rank, iteration, int(t.rank != 1 or iteration != without))
        exchange.synchronize()
        weights = arena.weights.copy()
        return weights, exchange.owned_state.state()

    return LoopbackWorld(2).run(body)


@pytest.mark.parametrize("make", CAN)
def test_a_state_is_that_of_all_updates(make):
    (weights, want), *_ = trained(make, "backward", **CAN[make])
    for overlap in ("none", "forward"):
        for other, state in trained(make, overlap, **CAN[make]):
            np.testing.assert_array_equal(other, weights)
            np.testing.assert_array_equal(state["momentum"], want["momentum"])


@pytest.mark.parametrize("make", CAN)
def test_a_rank_without_examples_settles_before_it_clears_its_gradients(make):
    """It makes no forward pass: zeros would be summed in place of what is under way. It waits for buckets in the order
    in which those wait that make one: a wait drives its own bucket alone, and messages want to be asked for often."""
    options = {"wrap": lambda t: delaying(t, seed=2, most=60), "algorithm": "ring", "bucket_bytes": 1, **CAN[make]}
    want, ranks = (trained(make, overlap, 3, without=1, **options) for overlap in ("backward", "forward"))
    each_equal([weights for weights, _ in ranks], want[0][0])


def test_averaging_alone_is_as_ever():
    want, ranks = (trained(Averaging, overlap, 6, begin=2, every=2) for overlap in ("backward", "forward"))
    each_equal([weights for weights, _ in ranks], want[0][0])


# ── who starts when ───────────────────────────────────────────────────────────────────────────────────────────────────
def starts(overlap, make=AllReduce, **options):
    """Tags of messages in the order in which buckets started, of each rank in each iteration. Ranks announce gradients
    in different orders."""

    def body(t):
        seen, log = recording(t)
        exchange, arena = bound(make, seen, algorithm="ring", bucket_bytes=1, overlap=overlap, **options)
        tags = []
        for iteration in range(ITERATIONS):
            forward(exchange, arena)
            log.clear()
            backward(exchange, arena, gradient(arena.spans, t.rank, iteration), arena.spans if t.rank % 2 else None)
            exchange.finish(iteration, LR)
            exchange.synchronize()
            tags.append(list(dict.fromkeys(tag for verb, _, _, tag in log if verb == "send")))
        return tags

    return LoopbackWorld(3).run(body)


@pytest.mark.parametrize(
    ("overlap", "make", "order"),
    [
        *((overlap, AllReduce, [0, 1, 2, 3, 4]) for overlap in ("none", "backward", "forward")),
        ("forward", Sharded, [0, 1, 2, 3, 4, 9, 8, 7, 6, 5]),  # sums have tags 0 to 4, weights 5 to 9
    ],
)
def test_buckets_start_in_one_order_on_all_ranks_and_weights_of_the_lowest_layers_first(overlap, make, order):
    assert starts(overlap, make) == [[order] * ITERATIONS] * 3


@pytest.mark.parametrize(
    ("make", "overlap", "started"),
    [(AllReduce, "backward", {0, 1}), (Sharded, "backward", {0, 1}), (AllReduce, "none", set())],
)
def test_a_bucket_starts_when_the_last_gradient_before_it_is_final_and_not_before(make, overlap, started):
    def body(t):
        seen, log = recording(t)
        exchange, arena = bound(make, seen, algorithm="ring", bucket_bytes=1, overlap=overlap)
        *_, b, c = arena.spans
        exchange.grad_ready(b)
        before = len(log)
        exchange.grad_ready(c)
        tags = {tag for *_, tag in log}
        exchange.finish(0, LR)
        return before, tags, len(log) > 0

    assert LoopbackWorld(2).run(body) == [(0, started, True)] * 2


# ── where it cannot be ────────────────────────────────────────────────────────────────────────────────────────────────
def notes(make, size=2, **options):
    def body(t):
        exchange, _ = bound(make, t, algorithm="ring", **options)
        exchange.reducers.close()
        return list(exchange.facts.notes)

    return LoopbackWorld(size).run(body)[0]


def test_clipping_needs_every_gradient_first():
    assert notes(AllReduce, overlap="forward", clip_norm=5.0) == [says("--overlap", "--clip-norm", "5")]
    assert notes(AllReduce, overlap="backward", clip_norm=5.0) == notes(AllReduce, overlap="forward") == []
    assert len(notes(Sharded, overlap="forward", clip_norm=5.0)) == 1  # what memory it takes
    (want, _), *_ = trained(AllReduce, "backward", 1, clip_norm=5.0)
    each_equal([weights for weights, _ in trained(AllReduce, "forward", 1, clip_norm=5.0)], want)
    each_equal([weights for weights, _ in trained(Sharded, "forward", 1, clip_norm=5.0, bucket_bytes=1)], want, 1e-12)


def test_what_is_said_of_delayed_and_averaging():
    (note,) = notes(Delayed, overlap="forward")
    assert note == says("--overlap forward")
    no_overlap, mean = notes(Averaging, overlap="none")
    assert no_overlap == says("--overlap none", "--average-from") and says("evaluations", "checkpoints").matches(mean)
    assert notes(Averaging, overlap="forward", begin=3) == [mean]


# ── buckets under way, by a clock of our own ──────────────────────────────────────────────────────────────────────────
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


def test_figures_are_means_that_add_up_to_the_whole():
    meter = BucketTimer()
    assert (meter.total_s, meter.each_exposed_s) == (0, 0)
    for seconds in (100, 2, 6):
        meter.start(50.0, 3)
        meter.add_exposed(seconds / 2)
        meter.end(50.0 + seconds)
    assert (meter.total_s, meter.each_exposed_s, meter.exposed_s, meter.bytes_sent) == (36, 18, 54, 9)
