"""Averaging in fragments, with sums that arrive late, and around an elastic centre: each beside a simulation."""

import math
from functools import partial

import numpy as np
import pytest
from exchange_support import (
    LR,
    TABLE,
    bound,
    counted_through,
    goes_on_as_if_unbroken,
    gradient,
    iterate,
    local_step,
)

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import ConfigError
from ringtrain.exchange.strategies.periods import Periods, divide, periods_of
from ringtrain.memory.arena import lay_out
from ringtrain.memory.buckets import Bucket
from ringtrain.transport.loopback import Loopback
from tests import lossy
from tests.fakes.strategies import Averaging, Gossip
from tests.loopback.world import LoopbackWorld
from tests.says import says

SPANS = lay_out(TABLE)
COUNT = SPANS[-1].stop
SPARSE = {"compress": "top-k", "compress_ratio": 0.2}
LARGEST = partial(lossy.largest, ratio=0.2)
SPARSELOCO = {**SPARSE, "outer": (0.0, 0.7), "compress_bits": 2, "compress_chunk": 16, "residual_decay": 0.95}
SPARSELOCOS = partial(lossy.largest, ratio=0.2, chunk=16, bits=2)
FOUR_BITS = {"outer": (0.9, 0.7), "compress": "quantise", "compress_bits": 4}
PERIOD = {"every": 5, "momentum": "keep", "bucket_bytes": 300}
STREAMING = {"every": 6, "fragments": 3, "average_delay": 2, "mixing": 0.25, "outer": (0.9, 0.7), "momentum": "keep"}
STATISTIC = next(span for span in SPANS if span.parameter.role == "statistic")


def part(span):
    return slice(span.start, span.start + span.count)


class Simulated:
    """All ranks in one process. Span → fragment; ``send``: what is sent of a matrix; ``decay``: the factor of what was
    kept; ``centre``: EASGD's rate"""

    def __init__(
        self,
        size,
        every,
        fragments,
        delay=0,
        mixing=0.0,
        outer=(0.0, 1.0),
        send=None,
        decay=1.0,
        centre=0.0,
        keep=True,
    ):
        self.size, self.every, self.fragments, self.delay, self.send = size, every, fragments, delay, send
        self.mixing, self.outer, self.decay, self.centre, self.keep = mixing, outer, decay, centre, keep
        self.w = [counted_through(SPANS) for _ in range(size)]
        self.v, self.kept = ([np.zeros(COUNT) for _ in range(size)] for _ in range(2))
        self.target, self.u, self.sums = self.w[0].copy(), np.zeros(COUNT), {}

    def step(self, number):
        for rank in range(self.size):
            local_step(SPANS, self.w[rank], self.v[rank], gradient(SPANS, rank, number))
        count = max(self.fragments.values()) + 1
        for fragment in range(count):
            spans = [span for span in SPANS if self.fragments[span.name] == fragment]
            if (number + 1 - (fragment + 1) * self.every // count) % self.every == 0:
                self.sums[fragment] = number, self.changes(spans)
            if fragment in self.sums and self.sums[fragment][0] + self.delay == number:
                self.take(spans, self.sums.pop(fragment)[1])
                if fragment == count - 1 and not self.keep:
                    mean = sum(v * (1 / self.size) for v in self.v)
                    self.v = [mean.copy() for _ in self.v]

    def changes(self, spans):
        total = np.zeros(COUNT)
        for rank in range(self.size):
            change, kept = (self.target - self.w[rank]) * (1 / self.size), self.kept[rank]
            for at in (part(span) for span in spans if self.send and span.parameter.role == "weight"):
                kept[at] = self.decay * kept[at] + change[at]  # what is not sent is kept
                change[at] = self.send(kept[at])
                kept[at] -= change[at]
            total += change
        return total

    def take(self, spans, total):
        (momentum, rate), before = self.outer, self.target.copy()
        for at, role in ((part(span), span.parameter.role) for span in spans):
            self.u[at] = momentum * self.u[at] + total[at]
            rate_of = rate * self.size * self.centre if self.centre else rate
            step = total[at] if role == "statistic" else rate_of * (total[at] + momentum * self.u[at])
            self.target[at] -= step
            for w in self.w:
                if self.centre:
                    w[at] -= self.centre * (w[at] - before[at])
                else:
                    w[at] = self.mixing * w[at] + (1 - self.mixing) * self.target[at]


def fragments_of(exchange):
    """Span → number of the fragment whose reducer has it."""
    reducers = [each for name, each in exchange.reducers.training.items() if name.startswith("changes")]
    return {span.name: n for n, each in enumerate(reducers) for bucket in each.buckets for span in bucket.spans}


def ends(size, steps=50, **flags):
    """The weights of each rank, its own."""

    def body(t):
        exchange, arena = bound(Averaging, t, algorithm="star", **flags)
        for number in range(steps):
            iterate(exchange, arena, t.rank, number, 1, size, reads=True)
        return arena.weights.copy(), exchange

    return LoopbackWorld(size).run(body)


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(
    ("flags", "simulation"),
    [
        (STREAMING, {"every": 6, "delay": 2, "mixing": 0.25, "outer": (0.9, 0.7)}),
        ({**STREAMING, **SPARSE}, {"every": 6, "delay": 2, "mixing": 0.25, "outer": (0.9, 0.7), "send": LARGEST}),
        ({"every": 5, "fragments": 2, "average_delay": 3}, {"every": 5, "delay": 3, "keep": False}),
        ({"every": 7, "fragments": 4, "momentum": "keep"}, {"every": 7}),
        ({"every": 4, "average_delay": 3, "momentum": "keep"}, {"every": 4, "delay": 3}),
        ({"every": 3, "centre_rate": 0.2, "momentum": "keep"}, {"every": 3, "centre": 0.2}),
        (
            {**PERIOD, "momentum": "average", "outer": (0.0, 1.0), **SPARSE},
            {"every": 5, "keep": False, "send": LARGEST},
        ),
        ({**PERIOD, **SPARSELOCO}, {"every": 5, "outer": (0.0, 0.7), "send": SPARSELOCOS, "decay": 0.95}),
        ({**PERIOD, **SPARSE, "outer": (0.9, 0.7)}, {"every": 5, "outer": (0.9, 0.7), "send": LARGEST}),
        ({**PERIOD, **FOUR_BITS}, {"every": 5, "outer": (0.9, 0.7), "send": partial(lossy.levels, bits=4)}),
        (
            {"every": 6, "fragments": 2, "average_delay": 1, "centre_rate": 0.1, "momentum": "keep", **SPARSE},
            {"every": 6, "delay": 1, "centre": 0.1, "send": LARGEST},
        ),
    ],
)
def test_weights_are_those_of_a_simulation(size, flags, simulation):
    """Of changes that travel whole, compressed, or as means."""
    ranks = ends(size, **flags)
    fragments = fragments_of(ranks[0][1])
    assert set(fragments.values()) == set(range(flags.get("fragments", 1)))
    simulated = Simulated(size, fragments=fragments, **simulation)
    for number in range(50):
        simulated.step(number)
    for (weights, _), wanted in zip(ranks, simulated.w, strict=True):
        np.testing.assert_allclose(weights, wanted, rtol=1e-12, atol=1e-12)


# ── when ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("every", [1, 2, 5, 8])
@pytest.mark.parametrize("fragments", [1, 2, 3, 7])
@pytest.mark.parametrize("begin", [0, 4])
def test_each_fragment_has_one_turn_a_period_and_turns_are_spread(every, fragments, begin):
    periods = Periods(every, fragments, 0, begin)
    turns = [periods.leaving(iteration) for iteration in range(begin + 3 * every)]
    assert not any(turns[:begin]) and turns[begin : begin + every] == turns[-every:]
    assert (
        sorted(number for turn in turns[-every:] for number in turn) == list(range(fragments))
        and fragments - 1 in turns[-1]
    )
    assert max(map(len, turns[-every:])) == math.ceil(fragments / every)
    for delay in range(every):
        late = Periods(every, fragments, delay, begin)
        assert [late.arriving(iteration) for iteration in range(begin + 3 * every)] == [[]] * delay + turns[
            : len(turns) - delay
        ]


def test_fragments_have_nearly_equal_bytes_and_layers_of_all_depths():
    def numbers(sizes, fragments):
        return divide([Bucket(0, size, (), size) for size in sizes], fragments)

    assert numbers([8] * 7, 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert numbers([1, 9, 1, 1, 1, 1], 2) == [[0, 2, 3, 4, 5], [1]]
    with pytest.raises(ConfigError, match=says("--fragments 3", "--fragments 2")):
        numbers([8, 8], 3)


def test_a_delay_is_shorter_than_a_period():
    with pytest.raises(ConfigError, match=says("--average-delay 4", "--average-every 4")):
        periods_of(ExchangeConfig(sync="averaging", average_every=4, average_delay=4))


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_bytes_are_those_of_the_formula_and_spread_over_the_period():
    """A rank sends 2(p-1)/p of a fragment, once a period. The most in any window is that of the fragments whose turns
    are in it."""
    size, every, flags = 2, 6, {"every": 6, "fragments": 3, "momentum": "keep", "algorithm": "sliced"}

    def body(t):
        exchange, arena = bound(Averaging, t, **flags)
        sent = [0]
        for number in range(3 * every):
            iterate(exchange, arena, t.rank, number, 1, size)
            sent.append(exchange.reducers.bytes_sent)
        sums = [each for name, each in exchange.reducers.training.items() if name != "weights"]
        return np.diff(sent), [(sum(b.nbytes for b in each.buckets), each.bytes_sent) for each in sums]

    by_iteration, fragments = LoopbackWorld(size).run(body)[0]
    assert sum(nbytes for nbytes, _ in fragments) == 8 * COUNT
    for nbytes, sent in fragments:
        assert sent == 3 * 2 * (size - 1) * nbytes // size
    turns = [sum(fragments[n][0] for n in Periods(every, 3).leaving(number)) for number in range(3 * every)]
    np.testing.assert_array_equal(by_iteration, turns)
    window = np.convolve(by_iteration, np.ones(2, int))
    assert max(window) == max(nbytes for nbytes, _ in fragments) < 8 * COUNT / 2


# ── examples, state, consensus ────────────────────────────────────────────────────────────────────────────────────────
def test_ranks_count_by_the_examples_of_the_fragments_own_period():
    """Rank 0 has all examples of the first two iterations, rank 1 all others."""

    def body(t):
        exchange, arena = bound(Averaging, t, every=4, fragments=2, momentum="keep", algorithm="star")
        shares = []
        start = exchange._changes.start
        exchange._changes.start = lambda number, share: (shares.append((number, share)), start(number, share))
        for number in range(6):
            iterate(exchange, arena, t.rank, number, int((number < 2) == (t.rank == 0)), 1)
        return shares

    assert LoopbackWorld(2).run(body)[0] == [(0, 1.0), (1, 0.5), (0, 0.0)]


@pytest.mark.parametrize(
    "flags",
    [
        {**STREAMING, **SPARSE},
        {**STREAMING, "momentum": "average"},
        {"centre_rate": 0.2},
        {**PERIOD, **SPARSE, "outer": (0.9, 0.7)},
        {**PERIOD, **SPARSELOCO},
        {**PERIOD, "compress": "sign", "outer": (0.9, 0.7)},
    ],
)
@pytest.mark.parametrize("stop", [7, 10, 13])
def test_a_run_goes_on_as_if_unbroken(stop, flags):
    """While no sum is under way, and while one is; in mid-period, and at the end of one."""
    goes_on_as_if_unbroken(Averaging, 3, stop, 20, algorithm="star", **flags)


def test_examples_of_a_period_under_way_are_kept_where_ranks_are_alike_otherwise():
    """A sum arrived late, and made weights and momentum the same; of the period since, rank 0 has most examples."""
    flags = {"every": 4, "average_delay": 1, "algorithm": "star"}
    goes_on_as_if_unbroken(Averaging, 2, 5, 9, lambda rank: 1 if rank else 3, total=4, **flags)


def test_looking_waits_for_sums_and_changes_nothing():
    def body(t, looks):
        exchange, arena = bound(Averaging, t, **{**STREAMING, **SPARSE})
        for number in range(15):
            iterate(exchange, arena, t.rank, number, 1, 2)
            if looks:
                exchange.synchronize()
                exchange.owned_state.state()
        exchange.before(15, 1, 2)
        return arena.weights.copy()

    looked, unseen = (LoopbackWorld(2).run(lambda t, looks=looks: body(t, looks)) for looks in (True, False))
    np.testing.assert_array_equal(looked, unseen)


def test_sums_make_progress_in_passes_while_they_are_under_way():
    def body(t):
        exchange, arena = bound(Averaging, t, every=3, average_delay=2)
        (sums,), tests = exchange._changes._sums, []
        plain, sums.test = sums.test, lambda *args: (tests.append(1), plain(*args))
        counts = []
        for number in range(6):
            exchange.before(number, 1, 2)
            before = len(tests)
            for span in arena.spans:
                exchange.before_read(span)
            for span in reversed(arena.spans):
                exchange.grad_ready(span)
            counts.append(len(tests) - before)
            exchange.finish(number, LR)
        return counts

    each = 2 * len(SPANS)
    assert LoopbackWorld(2).run(body) == [[0, 0, 0, each, each, 0]] * 2


def test_a_sum_under_way_is_taken_before_the_next_one_leaves():
    """A run that goes on with other periods."""

    def body(t):
        exchange, arena = bound(Averaging, t, every=6, average_delay=4)
        for number in range(6):
            iterate(exchange, arena, t.rank, number, 1, 2)
        first = exchange._outer.slots["period_begin"].copy()
        exchange._periods = Periods(7, 1, 4)
        iterate(exchange, arena, t.rank, 6, 1, 2)
        assert not np.array_equal(exchange._outer.slots["period_begin"], first)
        return arena.weights.copy()

    one, other = LoopbackWorld(2).run(body)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("flags", [STREAMING, {"every": 4, "centre_rate": 0.25}])
def test_ranks_are_alike_where_all_reduce_follows(flags):
    """A run that goes on with a later --average-from."""

    def body(t):
        exchange, arena = bound(Averaging, t, **{**flags, "begin": 0})
        for number in range(8):
            iterate(exchange, arena, t.rank, number, 1, 2)
        exchange._periods = Periods(flags["every"], flags.get("fragments", 1), flags.get("average_delay", 0), 20)
        iterate(exchange, arena, t.rank, 8, 1, 2)
        return arena.weights.copy()

    one, other = LoopbackWorld(2).run(body)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("make", "flags"), [(Averaging, {"every": 4}), (Averaging, STREAMING), (Gossip, {})])
def test_the_distance_from_consensus(make, flags):
    def body(t):
        exchange, arena = bound(make, t, **flags)
        for number in range(3):
            iterate(exchange, arena, t.rank, number, 1, 3)
        weights = arena.weights.copy()
        exchange.synchronize()
        distance = exchange.distance
        exchange.before(3, 1, 3)
        exchange.finish(3, LR)
        exchange.synchronize()
        return weights, distance, exchange.distance

    ranks = LoopbackWorld(3).run(body)
    weights = np.array([each for each, *_ in ranks])
    weights[:, STATISTIC.start : STATISTIC.stop] = 0
    mean = weights.mean(0)
    wanted = math.sqrt(((weights - mean) ** 2).sum() / 3) / np.linalg.norm(mean)
    assert [distance for _, distance, _ in ranks] == [pytest.approx(wanted, rel=1e-12)] * 3
    assert (ranks[0][2] is None) == (flags == {"every": 4})


def test_a_rank_alone_has_no_distance():
    exchange, arena = bound(Averaging, Loopback(), every=4)
    iterate(exchange, arena, 0, 0)
    exchange.synchronize()
    assert exchange.distance is None
