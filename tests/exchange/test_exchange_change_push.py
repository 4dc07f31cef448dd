"""Ranks that are apart: what weights hold when they are taken, how far ranks get, what a meeting ends with."""

import threading
from functools import partial

import numpy as np
import pytest
from exchange_support import bound, each_equal, forward, gradient, iterate, run

from ringtrain.config.record import OptimizerConfig
from ringtrain.errors import StalledError
from ringtrain.exchange.base import Lag
from ringtrain.exchange.servers.endpoint import RemoteServer
from ringtrain.exchange.servers.parameter_shard import ParameterShard
from ringtrain.exchange.servers.staleness import StalenessClock
from ringtrain.nn.arena import Arena, lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.nn.buckets import make_buckets
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import make_optimizer
from ringtrain.transport.base import Handle
from ringtrain.transport.loopback import Loopback
from tests.fakes.strategies import AllReduce, StaleParameterServer
from tests.fakes.transports import Wrapping, delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid

pushing = partial(StaleParameterServer, "server")


# ── weights that say which updates they hold ──────────────────────────────────────────────────────────────────────────
ITERATIONS = 8


def marking(t, size, **options):
    """An exchange on two parameters, one a server where there are two, with an element for each update of each rank."""
    ops, ZERO = ReferenceOps("float64"), Fill("constant")
    table = tuple((f"{name}.weight", Parameter("weight", (size, ITERATIONS), ZERO)) for name in "ab")
    arena = Arena(t.scratch, table, "float64", exchanged=t.allocate)
    exchange = pushing(t, ops, deadline_s=20.0, bucket_bytes=1, **options)
    exchange.bind(arena, make_optimizer("sgd", arena.spans, OptimizerConfig(momentum=0.0)))
    exchange.rehearse()
    return exchange, arena


def mark(arena, rank, iteration):
    """The update of this rank sets its element to its share."""
    arena.grads[...] = 0
    for span in arena.spans:
        arena.grad(span)[rank, iteration] = -1.0


def is_complete(arena, clock, rank, staleness, trainers, share):
    """Whether weights at ``clock`` hold what they must: all updates up to clock - K - 1 and all of this rank."""
    for span in arena.spans:
        updates = arena.weight(span)
        sure = max(clock - staleness, 0)
        assert np.all(updates[trainers, :sure] == share), (clock, updates)
        assert np.all(updates[rank, :clock] == share) and np.all((updates == 0) | (updates == share))


@pytest.mark.parametrize(
    ("staleness", "world", "overlap"),
    grid(
        lambda staleness, world, overlap: (overlap == "forward") == (staleness > 0),
        [0, 1, 3],
        [(2, 1, False, 1), (2, 2, False, 0), (4, 2, True, 3), (5, 1, True, 1)],
        ["backward", "forward"],
    ),
)
def test_with_one_slow_rank_the_lag_reaches_the_bound_and_pulls_are_complete(staleness, world, overlap):
    """The slow rank ends an iteration only when all others have begun the last one that they may."""
    size, servers, dedicated, slow = world
    begun = [0] * size

    def body(t):
        options = {"servers": servers, "dedicated": dedicated, "staleness": staleness, "overlap": overlap}
        exchange, arena = marking(t, size, **options)
        trainers = list(exchange.facts.roles.trainers)
        share, trains = 1 / len(trainers), t.rank in trainers
        for iteration in range(ITERATIONS):
            exchange.before(iteration, int(trains), len(trainers))
            begun[t.rank] = iteration + 1
            if trains:
                forward(exchange, arena)
                is_complete(arena, iteration, t.rank, staleness, trainers, share)
                mark(arena, t.rank, iteration)
            target = min(iteration + staleness + 1, ITERATIONS)
            while t.rank == slow and any(begun[other] < target for other in trainers if other != slow):
                t.patience.poll()
                exchange.grad_ready(arena.spans[0])
            exchange.finish(iteration, 1.0)
        exchange.synchronize()
        for span in arena.spans:
            assert np.all(arena.weight(span)[trainers] == share)
        return exchange.serving.lag()

    lags = LoopbackWorld(size).run(body)
    for rank, lag in enumerate(lags):
        assert (lag is not None) == (rank < servers)
        if lag is not None:
            assert lag.largest == staleness
            assert set(lag.updates.values()) == {ITERATIONS}


# ── sums ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def stepped(exchange, arena, rank, iteration, size):
    """An iteration whose gradients are parts of a mean over the rank's part of a batch, of equal size."""
    grads = size * gradient(arena.spans, rank, iteration)
    iterate(exchange, arena, rank, iteration, 1, size, reads=True, grads=grads)


@pytest.mark.parametrize("overlap", ["none", "forward"])
@pytest.mark.parametrize(("size", "servers"), [(1, 1), (2, 2), (4, 2)])
def test_without_staleness_it_would_be_synchronous(size, servers, overlap):
    """Momentum at the workers, and the sum of their steps: the step with the sum."""

    def body(t):
        exchange, arena = bound(pushing, delaying(t, 3), servers=servers, staleness=0, overlap=overlap, bucket_bytes=1)
        for iteration in range(5):
            stepped(exchange, arena, t.rank, iteration, size)
        exchange.synchronize()
        return arena.weights.copy()

    want = run(AllReduce, size, 5)[0][0]
    each_equal(LoopbackWorld(size).run(body), want, close=1e-12)


@pytest.mark.parametrize(
    ("every", "world", "overlap"),
    grid(
        lambda every, world, overlap: (overlap == "forward") == (every == 1),
        [1, 3],
        [(1, 1, False), (3, 1, False), (3, 2, False), (4, 2, True)],
        ["backward", "forward"],
    ),
)
def test_asynchronously_every_update_counts_once(every, world, overlap):
    """Ranks take parts as they come; meetings are in the middle of periods, and some find nothing new."""
    size, servers, dedicated = world

    def body(t, parts):
        options = {"servers": servers, "dedicated": dedicated, "every": every, "overlap": overlap}
        exchange, arena = marking(t, size, staleness=None, **options)
        trainers = exchange.facts.roles.trainers
        assert exchange.facts.dynamic_batches and exchange.facts.max_iteration_lag == 0
        for meeting in range(3):
            if t.rank not in trainers:
                exchange.serving.serve(t.patience.poll)
            for unit in parts[meeting] if t.rank in trainers else ():
                exchange.before(unit // len(trainers), 1, len(trainers))
                forward(exchange, arena)
                arena.grads[...] = 0
                for span in arena.spans:
                    arena.grad(span).reshape(-1)[unit] -= 1.0
                    exchange.grad_ready(span)
                exchange.finish(unit // len(trainers), 1.0)
            exchange.synchronize()
            before = arena.weights.copy()
            exchange.synchronize()
            np.testing.assert_array_equal(arena.weights, before)
        return arena.weights.copy(), exchange.serving.lag(), [arena.weight(span).copy() for span in arena.spans]

    count = size * ITERATIONS
    trainers = size - servers * dedicated
    parts = [locked(range(count // 2)), locked(()), locked(range(count // 2, count))]
    results = LoopbackWorld(size).run(lambda t: body(t, parts))
    assert len({weights.tobytes() for weights, *_ in results}) == 1
    for span in results[0][2]:
        np.testing.assert_array_equal(span, 1 / trainers)
    for _, lag, _ in results[:servers]:
        assert set(lag.updates) == set(range(size - trainers, size))
        assert sum(lag.versions.values()) == sum(lag.updates.values())
        assert every > 1 or sum(lag.updates.values()) == count
    assert all(lag is None for _, lag, _ in results[servers:])


def locked(units):
    """Units for threads to take."""
    iterator, lock = iter(units), threading.Lock()

    def take():
        with lock:
            return next(iterator, None)

    return iter(take, None)


def test_the_state_is_the_mean_of_the_workers_and_each_keeps_its_own():
    def body(t):
        exchange, arena = bound(pushing, t, staleness=2, dedicated=True)
        for iteration in range(3):
            trains = t.rank > 0
            exchange.before(iteration, int(trains), 3)
            arena.grads[...] = t.rank * trains
            exchange.finish(iteration, 0.125)
        exchange.synchronize()
        kept = exchange._update.slots["momentum"].copy()
        state = exchange.owned_state.state()
        again = exchange.owned_state.state()
        return kept, state, again, exchange._update.slots["momentum"].copy(), exchange._update.step

    (_, first, again, none, step), *workers = LoopbackWorld(4).run(body)
    assert none.size == 0 and step == 0 and first["step"] == 3
    np.testing.assert_allclose(first["momentum"], sum(kept for kept, *_ in workers) / 3, rtol=1e-12)
    assert not np.allclose(first["momentum"], workers[0][0])
    np.testing.assert_array_equal(first["momentum"], again["momentum"])
    for kept, state, _, momentum, step in workers:
        np.testing.assert_array_equal(state["momentum"], first["momentum"])
        np.testing.assert_array_equal(momentum, kept)
        assert step == 3


def test_what_it_restores_is_what_all_reduce_kept():
    (_, state, _), *_ = run(AllReduce, 1)

    def body(t):
        exchange, _ = bound(pushing, t, staleness=1, dedicated=t.size > 1)
        exchange.owned_state.restore(state)
        return exchange.owned_state.state()

    for size in (1, 3):
        for kept in LoopbackWorld(size).run(body):
            assert kept["step"] == 4 and np.array_equal(kept["momentum"], state["momentum"])


def test_what_it_sends_and_says():
    def body(t):
        exchange, arena = bound(pushing, t, servers=2, staleness=3)
        for iteration in range(3):
            stepped(exchange, arena, t.rank, iteration, 4)
        exchange.synchronize()
        return exchange, 8 * arena.count

    results = LoopbackWorld(4).run(body)
    nbytes = results[0][1]
    sent = [exchange.reducers.traffic().bytes_sent for exchange, _ in results]
    parts = [80 * 8, 96 * 8]  # a server sends its part to three others, and its own updates to the other server
    assert sent == [3 * (3 * parts[0] + parts[1]), 3 * (3 * parts[1] + parts[0]), 3 * nbytes, 3 * nbytes]
    exchange = results[0][0]
    assert exchange.reducers.traffic().exposed_s > 0
    assert not exchange.facts.exact and exchange.facts.max_iteration_lag == 4
    assert exchange.facts.header == says("ranks 0, 1", 3) and exchange.denominator(3, 10) == 3
    assert exchange.facts.notes[1:] == [says("since", "learning")]
    averaging, _ = bound(partial(StaleParameterServer, "averaging"), Loopback(), every=4)
    assert averaging.facts.header == says("rank 0", 4)
    assert averaging.facts.notes[1:] == [says("since", "learning"), says("--average-every")]
    assert Lag({}, {}, {0: 0}).largest == 0


class Slow(Handle):
    """A send that has not left until it is let go."""

    def __init__(self, inner, gate):
        self._inner, self._gate = inner, gate

    def start(self):
        self._inner.start()

    def test(self):
        return self._gate.is_set() and self._inner.test()

    def wait(self, deadline_s):
        self._inner.wait(deadline_s)


def test_weights_do_not_change_while_they_are_sent():
    world, gate = LoopbackWorld(3), threading.Event()
    servers_own = Wrapping(
        world.transport(0), lambda handle, verb, *_: Slow(handle, gate) if verb == "send" else handle
    )
    buckets = make_buckets(lay_out((("a", Parameter("weight", (16,), Fill("constant"))),)), 8, 1)
    store = ParameterShard(servers_own, ReferenceOps("float64"), buckets, StalenessClock((1, 2), None), "float64", 0)
    store.open(np.zeros(16))
    ends = [
        RemoteServer(world.transport(rank), 0, buckets, np.full(16, float(rank)), np.zeros(16), 0, 9.0)
        for rank in (1, 2)
    ]
    for end in ends:
        end.push()
        store.serve()
        assert store.weights.tolist() == [1.0] * 16 and not store.quiet
    gate.set()
    store.serve()
    assert store.weights.tolist() == [3.0] * 16
    store.serve()
    assert store.present == [1, 2] and ends[1].arrived(0)
    for end in ends:
        assert end.sent()
        end.goodbye()
    store.serve()
    assert store.present == [] and store.quiet


# ── ranks that do not come ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("absent", [0, 1])  # the server, or the other: then the server trains, and is held
def test_a_rank_that_makes_no_update_is_named(absent):
    def body(t):
        exchange, arena = bound(pushing, t, staleness=1, deadline_s=0.05)
        if t.rank == absent:
            return
        with pytest.raises(StalledError, match=says("0.05 s", f"rank {absent}")):
            for iteration in range(3):
                stepped(exchange, arena, t.rank, iteration, 2)

    LoopbackWorld(2).run(body)


def test_a_server_that_only_serves_names_the_slowest_and_who_is_not_at_the_meeting():
    def body(t):
        exchange, _ = bound(pushing, t, staleness=1, dedicated=True, deadline_s=0.05)
        if t.rank == 0:
            with pytest.raises(StalledError, match=says("ranks 1, 2", "update")):
                for iteration in range(3):
                    exchange.before(iteration, 0, 2)
                    exchange.finish(iteration, 0.1)
            with pytest.raises(StalledError, match=says("ranks 1, 2", "meeting")):
                exchange.synchronize()

    LoopbackWorld(3).run(body)


def arrive(clock, worker):
    clock.arrive(worker)
    return clock.release()


def replayed(size, staleness, order):
    """A clock after these arrivals, each followed by a release; and the workers that wait."""
    clock, waiting = StalenessClock(range(size), staleness), set()
    for worker in order:
        waiting.add(worker)
        waiting -= set(arrive(clock, worker))
    return clock, waiting


def every_order(size, staleness, steps):
    """Every order of so many arrivals of workers that do not wait."""
    orders = [()]
    for _ in range(steps):
        each = ((order, replayed(size, staleness, order)[1]) for order in orders)
        orders = [(*order, worker) for order, waiting in each for worker in range(size) if worker not in waiting]
    return orders


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize(("size", "steps"), [(1, 6), (2, 8), (3, 6)])
def test_every_order_of_arrivals_keeps_the_rules(size, steps, staleness):
    most = 0
    for order in every_order(size, staleness, steps):
        clock, waiting = replayed(size, staleness, order)
        assert clock.clocks == {worker: order.count(worker) for worker in range(size)}
        for worker, updates in clock.clocks.items():
            ahead = updates - clock.slowest
            assert ahead <= staleness + 1  # one that is held has given the update that it is held for
            assert (worker in waiting) == (ahead > staleness)
            assert (worker in waiting) == bool(clock.late(updates))
        assert len(waiting) < size  # somebody can always go on
        most = max(most, max(clock.clock_lags, default=0))
        assert sum(clock.version_lags.values()) == clock.version == len(order)
        assert sum(clock.clock_lags.values()) == len(order) - len(waiting)
    assert most == (staleness if size > 1 else 0)


def test_who_is_held_goes_on_in_the_order_of_coming():
    clock = StalenessClock([4, 2, 7], 1)
    assert arrive(clock, 7) == [7] and arrive(clock, 7) == []
    assert arrive(clock, 2) == [2] and arrive(clock, 2) == []
    assert clock.late(2) == [4] and not clock.allows(2) and clock.allows(1)
    assert arrive(clock, 4) == [7, 2, 4]
    assert clock.clock_lags == {0: 1, 1: 4} and clock.late(2) == []


def test_version_lag_counts_the_updates_of_others_between_taking_and_giving():
    clock = StalenessClock(range(3), None)
    for worker in (0, 1, 0, 0, 2, 1):
        assert arrive(clock, worker) == [worker]
    assert clock.version_lags == {0: 2, 1: 2, 4: 1, 3: 1}
    assert clock.clocks == {0: 3, 1: 2, 2: 1}


def test_a_worker_that_is_held_cannot_give():
    clock = StalenessClock(range(2), 0)
    arrive(clock, 1)
    with pytest.raises(ValueError, match="worker 1 is held at clock 1, and gave another update"):
        clock.arrive(1)
