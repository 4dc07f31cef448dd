"""Servers that merge the changes of a quorum: beside a simulation with arrivals that are fixed, and the clock alone."""

import threading
from functools import partial

import numpy as np
import pytest
from exchange_support import TABLE, bound, counted_through, forward, gradient, iterate, local_step

from ringtrain.errors import StalledError
from ringtrain.exchange.base import Lag
from ringtrain.exchange.servers.quorum import QuorumClock
from ringtrain.memory.arena import lay_out
from tests.fakes.strategies import StaleParameterServer
from tests.loopback.world import LoopbackWorld
from tests.says import says

pushing = partial(StaleParameterServer, "averaging")
EVERY = 3


# ── the clock ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def replayed(quorum, grace_s, events, size=4):
    """(time, merged workers) of each round. ``events``: (time, worker or None, workers that are present)"""
    now = [0.0]
    clock, rounds = QuorumClock(range(size), quorum, grace_s, lambda: now[0]), []
    for now[0], worker, present in events:
        if worker is not None:
            clock.arrive(worker)
        merged = clock.merge(present)
        assert sorted(clock.release()) == merged
        if merged:
            rounds.append((now[0], list(merged)))
    return clock, rounds


def test_a_round_ends_with_its_quorum_and_a_later_push_is_of_the_next():
    events = [(1, 2, 4), (2, 0, 4), (3, 1, 4), (4, 3, 4), (5, 0, 4), (6, 2, 4)]
    clock, rounds = replayed(3, 0.0, events)
    assert rounds == [(3, [0, 1, 2]), (6, [0, 2, 3])]  # in the order of ranks
    # Worker 3 began before the first round: three updates came meanwhile.
    assert clock.lag() == Lag({0: 1, 1: 5}, {0: 5, 3: 1}, {0: 2, 1: 1, 2: 2, 3: 1})
    assert clock.late(0) == [0, 1, 2, 3] and clock.allows(99)


def test_grace_lets_others_in_until_it_is_over_or_all_have_come():
    early = [(1.0, 0, 4), (2.0, 1, 4), (3.9, 3, 4), (4.0, None, 4), (5.0, 2, 4)]
    assert replayed(2, 2.0, early)[1] == [(4.0, [0, 1, 3])]
    everyone = [(1.0, 0, 4), (2.0, 1, 4), (2.5, 2, 4), (2.6, 3, 4)]
    assert replayed(2, 9.0, everyone)[1] == [(2.6, [0, 1, 2, 3])]
    # The grace of a round begins with its own quorum.
    again = [(1.0, 0, 4), (2.0, 1, 4), (4.0, None, 4), (4.5, 3, 4), (5.0, 0, 4), (6.9, None, 4), (7.0, None, 4)]
    assert replayed(2, 2.0, again)[1] == [(4.0, [0, 1]), (7.0, [0, 3])]


def test_before_a_meeting_those_that_are_present_suffice():
    events = [(1, 0, 4), (2, 1, 4), (3, None, 2), (4, 2, 2), (5, 3, 2), (6, 2, 1)]
    assert replayed(3, 0.0, events)[1] == [(3, [0, 1]), (5, [2, 3]), (6, [2])]
    assert replayed(9, 0.0, [(1, 0, 2), (2, 1, 2)], size=2)[1] == [(2, [0, 1])]


def test_two_pushes_of_a_worker_in_a_round_are_a_defect():
    clock = QuorumClock(range(3), 2, 0.0, lambda: 0.0)
    clock.arrive(1)
    assert clock.merge(3) == clock.release() == [] and clock.late(0) == [0, 2]
    with pytest.raises(ValueError, match=says("worker 1")):
        clock.arrive(1)


# ── beside a simulation ───────────────────────────────────────────────────────────────────────────────────────────────
def rounds_of(size, quorum, count, first=0):
    """The workers of each round: servers begin, and the last rank comes to every fourth alone, with a change of weights
    of long before."""
    rng = np.random.default_rng(5)
    quick = range(first, size - 1)
    return [list(range(first, first + quorum))] + [
        sorted(rng.choice([*quick, size - 1] if number % 4 == 3 else quick, quorum, replace=False).tolist())
        for number in range(1, count)
    ]


def simulated(size, rounds, momentum, rate, every=EVERY, alike=False):
    """(weights, momentum of the step, version lags): local SGD from the weights of the last pull, and a Nesterov step
    along the mean of a round's changes by examples."""
    spans = lay_out(TABLE)
    w = counted_through(spans)
    u, version, lags = np.zeros_like(w), 0, {}
    pulled, v = [w.copy() for _ in range(size)], [np.zeros_like(w) for _ in range(size)]
    steps, seen = [0] * size, [0] * size
    for members in rounds:
        changes = []
        for rank in members:
            local = pulled[rank].copy()
            for step in range(steps[rank], steps[rank] + every):
                local_step(spans, local, v[rank], gradient(spans, rank, step))
            steps[rank] += every
            changes.append(local - pulled[rank])
            lags[version - seen[rank]] = lags.get(version - seen[rank], 0) + 1
        seen_by = [1 if alike else examples(rank) for rank in members]
        mean = sum(count * change for count, change in zip(seen_by, changes, strict=True)) / sum(seen_by)
        u = momentum * u - mean
        stepped = w - rate * (momentum * u - mean)
        for span in spans:
            if span.parameter.role == "statistic":
                stepped[span.start : span.stop] = (w + mean)[span.start : span.stop]
                u[span.start : span.stop] = 0
        w, version = stepped, version + len(members)
        for rank in members:
            pulled[rank], seen[rank] = w.copy(), version
    return w, u, lags


def examples(rank):
    return 1 + rank


class Rounds:
    """Lets workers push in their rounds alone."""

    def __init__(self, rounds):
        self._rounds, self._left = rounds, [len(members) for members in rounds]
        self._lock = threading.Lock()

    def of(self, exchange, t):
        """The rounds of this rank, each when the one before is over."""
        for number, members in enumerate(self._rounds):
            if t.rank in members:
                while number and self._left[number - 1]:
                    exchange.serving.poll()
                    t.patience.poll()
                yield number
                with self._lock:
                    self._left[number] -= 1


def train(t, rounds, settle=True, **options):
    exchange, arena = bound(pushing, t, every=EVERY, bucket_bytes=300, **options)
    iteration = 0
    for _ in rounds.of(exchange, t):
        for _ in range(EVERY):
            iterate(exchange, arena, t.rank, iteration, examples(t.rank), 10, reads=True)
            iteration += 1
        forward(exchange, arena)  # a round is over when its weights have come
    exchange.synchronize()
    return exchange, arena


@pytest.mark.parametrize(
    ("size", "quorum", "options"),
    [
        (3, 2, {"outer": (0.9, 0.7), "overlap": "forward"}),
        (4, 3, {"outer": (0.9, 0.7), "servers": 2}),
        (4, 2, {"dedicated": True, "outer": (0.5, 1.0)}),
        (4, 2, {}),
    ],
)
def test_weights_are_those_of_a_simulation(size, quorum, options):
    rounds = rounds_of(size, quorum, 17, first=int(options.get("dedicated", False)))
    assert 0 < sum(size - 1 in members for members in rounds) < 6
    wanted, momentum, lags = simulated(size, rounds, *options.get("outer", (0.0, 1.0)))

    def body(t, gate):
        exchange, arena = train(t, gate, quorum=quorum, **options)
        state = exchange.owned_state.state()
        return arena.weights.copy(), state["outer_momentum"], exchange

    gate = Rounds(rounds)
    ranks = LoopbackWorld(size).run(lambda t: body(t, gate))
    for weights, velocity, _ in ranks:
        np.testing.assert_allclose(weights, wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(velocity, momentum, rtol=1e-12, atol=1e-12)
    pushes = {rank: sum(rank in members for members in rounds) for rank in range(size)}
    servers = options.get("servers", 1)
    for rank, (*_, exchange) in enumerate(ranks):
        lag = exchange.serving.lag()
        assert (lag is None) == (rank >= servers)
        if lag is not None:
            assert lag.versions == lags and {rank: lag.updates.get(rank, 0) for rank in pushes} == pushes
        shard = exchange._endpoint.shard.weights.size if rank < servers else 0
        others = sum(count for other, count in pushes.items() if other != rank)
        sent = pushes[rank] * (wanted.size - shard) + shard * others
        assert exchange.reducers.traffic().bytes_sent == 8 * sent


def test_it_says_what_it_waits_for_and_how_far_ranks_may_be():
    options = {"quorum": 3, "grace_s": 2.0, "outer": (0.9, 0.7)}
    header = LoopbackWorld(4).run(lambda t: bound(pushing, t, every=8, **options)[0].facts.header)[0]
    assert header == "on rank 0, quorum 3 of 4, grace 2 s, outer momentum 0.9, rate 0.7, every 8"
    few = LoopbackWorld(2).run(lambda t: bound(pushing, t, every=8, quorum=3)[0])[0]
    assert few.facts.header == "on rank 0, quorum 2 of 2, every 8" and few.facts.dynamic_batches


def test_a_rank_that_does_not_come_holds_those_alone_that_are_no_quorum_without_it():
    """Rank 2 comes when the others have made four rounds, and to the meeting."""
    late = threading.Event()

    def body(t, quorum, deadline_s=20.0):
        exchange, arena = bound(pushing, t, every=1, quorum=quorum, deadline_s=deadline_s)
        if t.rank == 2:
            late.wait(20)
            if deadline_s < 20:
                return None
        for iteration in range(1 if t.rank == 2 else 4):
            iterate(exchange, arena, t.rank, iteration, 1, 3)
        late.set()
        exchange.synchronize()
        return exchange.serving.lag()

    lag = LoopbackWorld(3).run(lambda t: body(t, 2))[0]
    assert lag.updates == {0: 4, 1: 4, 2: 1}

    def held(t):
        if t.rank == 2:
            body(t, 3, 0.05)
            return
        with pytest.raises(StalledError, match=says("0.05 s", f"rank {2 if t.rank == 0 else 0}")):
            body(t, 3, 0.05)

    LoopbackWorld(3).run(held)


# ── a stop ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("stop", [4, 6])
def test_a_run_goes_on_as_if_unbroken(stop):
    """In mid-period, and at the end of one. Workers that are alike have the mean of their states."""
    grads = gradient(lay_out(TABLE), 0, 0)

    def iterations(exchange, arena, span):
        for iteration in span:
            iterate(exchange, arena, 0, iteration, 1, 4, grads=grads * (1 + iteration))
        exchange.synchronize()
        return arena.weights.copy(), exchange.owned_state.state()

    def body(t, saved=None):
        exchange, arena = bound(pushing, t, every=EVERY, quorum=4, servers=2, outer=(0.9, 0.7))
        if saved is None:
            middle = iterations(exchange, arena, range(stop))
            return middle, iterations(exchange, arena, range(stop, 12))
        arena.weights[...] = saved[0]
        exchange.owned_state.restore(saved[1])
        return iterations(exchange, arena, range(stop, 12))

    middle, wanted = LoopbackWorld(4).run(body)[0]
    for weights, state in LoopbackWorld(4).run(lambda t: body(t, middle)):
        np.testing.assert_array_equal(weights, wanted[0])
        np.testing.assert_array_equal(state["outer_momentum"], wanted[1]["outer_momentum"])
        assert state["outer_momentum"].any()


def test_a_server_outlives_other_ranks_with_all_that_it_has_merged():
    """Alone, and in mid-period: what has been pushed counts, and nothing else."""

    def body(t, **options):
        exchange, arena = bound(pushing, t, every=2, quorum=3, outer=(0.9, 0.7), **options)
        for iteration in range(5):
            iterate(exchange, arena, t.rank, iteration, 1, 3, reads=True)
        if not exchange.facts.survives_rank_loss:
            return None
        shard, slot = exchange._endpoint.shard, exchange._update.slots["momentum"].copy()
        assert not np.array_equal(arena.weights, shard.weights)
        exchange.outlive()
        state = exchange.owned_state.state()
        np.testing.assert_array_equal(arena.weights, shard.weights)
        np.testing.assert_array_equal(state["outer_momentum"], shard.outer.velocity)
        np.testing.assert_array_equal(state["momentum"], slot)
        return arena.weights.copy(), state["step"]

    (weights, step), *others = LoopbackWorld(3).run(body)
    wanted, *_ = simulated(3, [[0, 1, 2]] * 2, 0.9, 0.7, every=2, alike=True)
    np.testing.assert_allclose(weights, wanted, rtol=1e-12, atol=1e-12)
    assert step == 5 and others == [None, None]
    assert LoopbackWorld(3).run(lambda t: body(t, servers=2)) == [None] * 3  # each has a part alone
