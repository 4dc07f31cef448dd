"""Servers that own spans: sums in the order of ranks, each applied once, whoever serves and however it travels. Ranks
that are apart: what weights hold when they are taken, how far ranks get, what a meeting ends with."""

import threading
from functools import partial

import numpy as np
import pytest
from exchange_support import TABLE, all_alike, bound, each_equal, forward, gradient, iterate, kit_of, run

from ringtrain.collectives.algorithms import rooted
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.config.record import OptimizerConfig
from ringtrain.errors import ConfigError, StalledError
from ringtrain.exchange.base import Lag, Roles
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.exchange.servers.endpoint import RemoteServer
from ringtrain.exchange.servers.parameter_shard import ParameterShard
from ringtrain.exchange.servers.shards import buckets_of, divide_ownership, pieces_of
from ringtrain.exchange.servers.staleness import StalenessClock
from ringtrain.memory.arena import Arena, lay_out
from ringtrain.memory.buckets import make_buckets
from ringtrain.memory.spans import Fill, Parameter
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.catalogue import make_optimizer
from ringtrain.transport.base import Handle
from ringtrain.transport.loopback import Loopback
from ringtrain.transport.waiting import wait_for
from tests.fakes.strategies import AllReduce, ParameterServer, StaleParameterServer
from tests.fakes.transports import Shut, Wrapping, delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid


def served(size, iterations=4, **options):
    """(weights, state, exchange) of each rank, as in training: forward asks for weights, layer by layer."""
    return run(ParameterServer, size, iterations, reads=True, **options)


# ── trees ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("half", [rooted.reduce_to_root, rooted.broadcast_from_root])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_trees_are_proved_for_every_root(half, size):
    for root in range(size):
        verify_schedule(half(root, range(size), size))


def test_sums_are_made_in_the_order_of_ranks():
    """1e16 + 1 - 1e16 is 0 in this order, and 1 in another: on every server, and for contributions of any lateness."""
    values = (1e16, 1.0, -1e16, 0.5)

    def body(t, seed):
        exchange, arena = bound(ParameterServer, delaying(t, seed), servers=4, bucket_bytes=1)
        exchange.before(0, 1, 1)
        arena.weights[...] = 0
        arena.grads[...] = values[t.rank]
        exchange.finish(0, 1.0)
        trained = [arena.weight(span) for span in arena.spans if span.parameter.role == "weight"]
        return {value for part in trained for value in part.reshape(-1)}

    for seed in range(3):
        assert LoopbackWorld(4).run(lambda t, s=seed: body(t, s)) == [{-0.5}] * 4


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_parts_are_as_even_as_whole_parameters_can_be():
    spans = lay_out(TABLE)  # of 48, 16, 16, 80 and 16 elements

    def sizes(servers):
        return [sum(span.stop - span.start for span in part) for part in divide_ownership(spans, servers, whole=True)]

    assert [sizes(n) for n in (1, 2, 3)] == [[176], [80, 96], [80, 80, 16]]
    assert max(sizes(4)) == 80 and sizes(5) == [48, 16, 16, 80, 16]
    for servers in range(1, 6):
        flat = [span.name for part in divide_ownership(spans, servers, whole=True) for span in part]
        assert flat == [span.name for span in spans] and len(sizes(servers)) == servers
    owned = buckets_of(divide_ownership(spans, 2, whole=True), 8, 1 << 20)
    assert [(server, bucket.start, bucket.stop) for server, bucket in owned] == [(1, 80, 176), (0, 0, 80)]


def test_equal_parts_cut_parameters():
    spans = lay_out(TABLE)
    assert [[(span.name, span.start, span.stop) for span in part] for part in divide_ownership(spans, 3)] == [
        [("a.weight", 0, 48)],
        [("a.bias", 48, 64), ("n.mean", 64, 80), ("b.weight[0:32]", 80, 112)],
        [("b.weight[32:80]", 112, 160), ("c.weight", 160, 176)],
    ]
    pieces = pieces_of(spans, divide_ownership(spans, 3))
    assert [piece.name for piece in pieces["b.weight"]] == ["b.weight[0:32]", "b.weight[32:80]"]
    assert pieces["a.bias"] == [spans[1]] and pieces["b.weight"][0].parameter is spans[3].parameter
    for servers in range(1, 6):
        sizes = [part[-1].stop - part[0].start for part in divide_ownership(spans, servers)]
        assert len(sizes) == servers and sum(sizes) == 176 and max(sizes) - min(sizes) <= 16


@pytest.mark.parametrize(
    ("size", "servers", "dedicated", "roles"),
    [
        (4, 2, False, Roles((0, 1, 2, 3), (0, 1))),
        (4, 2, True, Roles((2, 3), (0, 1))),
        (1, 1, False, Roles((0,), (0,))),
        (2, 3, False, says("--servers 3", "2 ranks", 2)),
        (1, 2, True, says("--servers 2", "1 rank", 1)),
        (1, 1, True, says("--dedicated", "--servers 1", "1 rank", "--no-dedicated")),
        (2, 2, True, says("--dedicated", "--servers 2", "2 ranks", "--no-dedicated")),
    ],
)
def test_roles(size, servers, dedicated, roles):
    settings = kit_of(size, sync="server", servers=servers, dedicated=dedicated)
    if isinstance(roles, Roles):
        assert make_exchange(settings).facts.roles == roles
    else:
        with pytest.raises(ConfigError, match=roles):
            make_exchange(settings)


def test_more_servers_than_parameters_are_refused():
    def body(t):
        with pytest.raises(ConfigError, match=says("--servers", 6, 5)):
            bound(ParameterServer, t, servers=6)

    LoopbackWorld(6).run(body)


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────────
OVERLAPS = ("none", "backward", "forward")


@pytest.mark.parametrize(
    ("world", "overlap"),
    grid(
        lambda world, overlap: world == (3, 2) or overlap == "backward",
        [(1, 1), (2, 1), (2, 2), (3, 2), (5, 3)],
        OVERLAPS,
    ),
)
def test_it_is_all_reduce(world, overlap):
    """Sums of small whole numbers are the same in any order."""
    size, servers = world
    (want, kept, _), *_ = run(AllReduce, size)
    for options in ({"bucket_bytes": 1}, {"bucket_bytes": 600, "segment_bytes": 64}):
        all_alike(served(size, servers=servers, overlap=overlap, **options), want, kept)


@pytest.mark.parametrize(
    ("servers", "overlap"), grid(lambda servers, overlap: overlap == OVERLAPS[servers - 1], (1, 2, 3), OVERLAPS)
)
def test_dedicated_servers(servers, overlap):
    """Ranks that only serve have no part in the sums, and end with all weights too."""
    size = 6

    def expected(t):
        exchange, arena = bound(AllReduce, t)
        for iteration in range(3):
            iterate(exchange, arena, t.rank, iteration, int(t.rank >= servers))
        return arena.weights.copy()

    want = LoopbackWorld(size).run(expected)[0]
    options = {"servers": servers, "dedicated": True, "overlap": overlap, "bucket_bytes": 300}
    for nodes in (1, 2, [0, 1, 0, 1, 2, 2]):
        all_alike(served(size, 3, nodes=nodes, segment_bytes=64, **options), want)


def test_with_overlap_forward_a_layer_waits_for_its_own_weights_alone():
    """Workers ask for the lowest layer, and wait for no other."""

    def body(t):
        exchange, arena = bound(ParameterServer, t, overlap="forward", bucket_bytes=1)
        arena.weights[...] = 0
        iterate(exchange, arena, t.rank, 0, reads=True)
        first = arena.spans[0]
        exchange.before_read(first)
        landed = exchange._pulls._arrived
        exchange.synchronize()
        return landed, arena.weights.any()

    assert LoopbackWorld(3).run(body) == [(0, True), (1, True), (1, True)]  # the server has its weights


@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("late", [0, 4])  # the bucket of the highest layer, or of the lowest
def test_a_bucket_comes_back_before_the_last_sum_is_complete(dedicated, late):
    """The server does not get one bucket's gradients before rank 1 has all other weights of the update. Meanwhile the
    server waits for that bucket in its forward pass, or, dedicated, at its next iteration."""
    gates, size = {}, 3

    def body(t):
        gate = gates[t.rank] = Shut(t, late, late)
        options = {"overlap": "forward", "bucket_bytes": 1, "dedicated": dedicated}
        exchange, arena = bound(ParameterServer, gate, **options)
        t.barrier()
        trains = t.rank in exchange.facts.roles.trainers
        iterate(exchange, arena, t.rank, 0, int(trains), reads=True)
        weights = exchange._weights
        if t.rank == 1:
            others = set(range(len(arena.spans))) - {late}
            wait_for(lambda: came(exchange, others), 20.0, lambda: "weights")
            assert not weights.has_landed(late)
            gates[0].opened = True
        exchange.before(1, int(trains), 1)
        if trains:
            forward(exchange, arena)
        exchange.synchronize()
        return arena.weights.copy()

    def came(exchange, indices):
        exchange._weights.test()
        return all(map(exchange._weights.has_landed, indices))

    (want, *_), *_ = served(size, 1, dedicated=dedicated, bucket_bytes=1)
    each_equal(LoopbackWorld(size).run(body), want)


@pytest.mark.parametrize(("exposed", "counted"), [(False, set()), (True, {"start", "test"})])
def test_what_a_server_does_within_a_wait_counts_as_that_wait_alone(exposed, counted):
    """All gradients reach the server when it serves, and not before."""

    def body(t):
        gate = Shut(t, 0, len(TABLE) - 1)
        exchange, arena = bound(ParameterServer, gate, overlap="forward", bucket_bytes=1)
        iterate(exchange, arena, t.rank, 0, reads=True)
        seen = set()
        if t.rank == 0:
            exchange._weights.watch(lambda verb, *_: seen.add(verb))
            gate.opened = True
            wait_for(lambda: exchange._serve(exposed) or not exchange._updates._owed, 20.0, lambda: "gradients")
            exchange._weights.watch(None)
        gate.opened = True
        exchange.synchronize()
        return seen - {"land"}

    assert LoopbackWorld(2).run(body)[0] == counted


def test_with_clipping_servers_update_when_all_sums_are_there_and_the_header_says_so():
    sizes = says("1.375 KiB")
    for options, notes in (({}, [sizes]), ({"clip_norm": 0.5}, [sizes, says("--overlap", "--clip-norm", "0.5")])):
        assert served(2, 2, overlap="forward", **options)[0][2].facts.notes == notes


def test_a_server_sends_its_part_to_each_and_others_send_all_once():
    ranks = served(4, iterations=3, servers=1)
    nbytes = 8 * ranks[0][0].size
    assert [exchange.reducers.traffic().bytes_sent for *_, exchange in ranks] == [3 * 3 * nbytes] + [3 * nbytes] * 3


def test_state_lies_with_its_owner_and_the_header_says_so():
    ranks = served(3, servers=2, optimizer="adamw")
    assert [exchange._update.slots["square"].size for *_, exchange in ranks] == [80, 96, 0]
    exchange = ranks[0][2]
    assert exchange.facts.exact and exchange.facts.header == says("ranks 0, 1")
    assert exchange.facts.notes == [says(2, "640 B", "768 B")]
    exchange = served(3, dedicated=True)[0][2]
    assert exchange.facts.header == says("rank 0")
    assert exchange.facts.notes == [says("1.375 KiB")]


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


def test_weights_that_are_sent_are_those_of_that_moment_and_a_slow_link_holds_no_other():
    world, gate = LoopbackWorld(3), threading.Event()
    servers_own = Wrapping(
        world.transport(0), lambda handle, verb, *_: Slow(handle, gate) if verb == "send" else handle
    )
    buckets = make_buckets(lay_out((("a", Parameter("weight", (16,), Fill("constant"))),)), 8, 1)
    store = ParameterShard(servers_own, ReferenceOps("float64"), buckets, StalenessClock((1, 2), None), "float64", 0)
    store.open(np.zeros(16))
    pulls = [np.zeros(16) for _ in range(2)]
    ends = [
        RemoteServer(world.transport(rank), 0, buckets, np.full(16, float(rank)), pulls[rank - 1], 0) for rank in (1, 2)
    ]
    for end, total in zip(ends, (1.0, 3.0), strict=True):
        end.push(1)
        store.serve()
        assert store.weights.tolist() == [total] * 16 and not store.quiet
    gate.set()
    store.serve()
    assert store.present == [1, 2] and all(end.arrived(0) for end in ends)
    assert [pull.tolist() for pull in pulls] == [[1.0] * 16, [3.0] * 16]
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
    assert clock.merge(len(clock.clocks)) == [worker]
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


def test_who_is_held_gives_no_update_and_goes_on_in_the_order_of_coming():
    clock = StalenessClock([4, 2, 7], 1)
    assert arrive(clock, 7) == [7] and arrive(clock, 7) == []
    assert arrive(clock, 2) == [2] and arrive(clock, 2) == []
    assert clock.late(2) == [4] and not clock.allows(2) and clock.allows(1)
    assert arrive(clock, 4) == [7, 2, 4]
    assert clock.clock_lags == {0: 1, 1: 4} and clock.late(2) == []
    clock = StalenessClock(range(2), 0)
    arrive(clock, 1)
    with pytest.raises(ValueError, match="worker 1 is held at clock 1, and gave another update"):
        clock.arrive(1)


def test_version_lag_counts_the_updates_of_others_between_taking_and_giving():
    clock = StalenessClock(range(3), None)
    for worker in (0, 1, 0, 0, 2, 1):
        assert arrive(clock, worker) == [worker]
    assert clock.version_lags == {0: 2, 1: 2, 4: 1, 3: 1}
    assert clock.clocks == {0: 3, 1: 2, 2: 1}
