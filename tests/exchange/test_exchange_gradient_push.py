"""Servers that own spans: sums in the order of ranks, each applied once, whoever serves and however it travels."""

import pytest
from exchange_support import TABLE, all_alike, bound, each_equal, forward, iterate, kit_of, run

from ringtrain.collectives.algorithms import rooted
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.topology import filled
from ringtrain.errors import ConfigError
from ringtrain.exchange.base import Roles
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.exchange.servers.shards import buckets_of, divide_ownership, pieces_of
from ringtrain.nn.arena import lay_out
from ringtrain.transport.waiting import wait_for
from tests.fakes.strategies import AllReduce, ParameterServer
from tests.fakes.transports import Shut, delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import grid


def served(size, iterations=4, **options):
    """(weights, state, exchange) of each rank, as in training: forward asks for weights, layer by layer."""
    return run(ParameterServer, size, iterations, reads=True, **options)


# ── trees ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("half", [rooted.reduce_to_root, rooted.broadcast_from_root])
@pytest.mark.parametrize("counts", [(1,), (2,), (5,), (2, 1), (1, 4), (3, 2, 2), (1, 1, 1)])
def test_trees_are_proved_for_every_root(half, counts):
    node_of = filled(counts).node_of()
    everybody = range(len(node_of))
    for root in everybody:
        verify_schedule(half(rooted.straight(root, everybody, len(node_of))))
        verify_schedule(half(rooted.by_nodes(root, everybody, node_of)))


def test_a_node_sends_and_receives_one_buffer_whatever_its_ranks():
    node_of = filled((3, 3)).node_of()
    tree = rooted.by_nodes(1, range(6), node_of)
    assert tree.parents == (1, None, 1, 1, 3, 3)
    assert rooted.by_nodes(1, (3, 5), node_of).parents == (None, None, None, 1, None, 3)
    assert rooted.straight(1, (0, 3), 4).parents == (1, None, None, 1)


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
    ("servers", "levels", "overlap"),
    grid(lambda servers, levels, overlap: overlap == OVERLAPS[servers - levels], (1, 2, 3), (1, 2), OVERLAPS),
)
def test_dedicated_servers_and_heads_of_nodes(servers, levels, overlap):
    """Ranks that only serve have no part in the sums, and end with all weights too."""
    size = 6

    def expected(t):
        exchange, arena = bound(AllReduce, t)
        for iteration in range(3):
            iterate(exchange, arena, t.rank, iteration, int(t.rank >= servers))
        return arena.weights.copy()

    want = LoopbackWorld(size).run(expected)[0]
    options = {"servers": servers, "dedicated": True, "levels": levels, "overlap": overlap, "bucket_bytes": 300}
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


def test_the_head_of_a_node_hands_weights_on_though_it_has_no_examples():
    """Rank 2 gets its weights by way of rank 1, which has nothing to compute, and waits where the loop sums losses."""

    def body(t):
        exchange, arena = bound(ParameterServer, t, levels=2, overlap="forward", bucket_bytes=1)
        for iteration in range(3):
            exchange.before(iteration, int(t.rank != 1), 2)
            if t.rank != 1:
                forward(exchange, arena)
            t.barrier()
            arena.grads[...] = 0
            exchange.finish(iteration, 0.125)
        exchange.synchronize()
        return arena.weights.tobytes()

    assert len(set(LoopbackWorld(3, [0, 1, 1], meet_s=5).run(body))) == 1


def test_a_server_sends_its_part_to_each_and_others_send_all_once():
    ranks = served(4, iterations=3, servers=1)
    nbytes = 8 * ranks[0][0].size
    assert [exchange.reducers.traffic().bytes_sent for *_, exchange in ranks] == [3 * 3 * nbytes] + [3 * nbytes] * 3
    ranks = served(6, iterations=1, nodes=2, servers=1, levels=2)
    assert [exchange.reducers.traffic().bytes_sent // nbytes for *_, exchange in ranks] == [3, 1, 1, 3, 1, 1]


def test_state_lies_with_its_owner_and_the_header_says_so():
    ranks = served(3, servers=2, optimizer="adamw")
    assert [exchange._update.slots["square"].size for *_, exchange in ranks] == [80, 96, 0]
    exchange = ranks[0][2]
    assert exchange.facts.exact and exchange.facts.header == says("ranks 0, 1")
    assert exchange.facts.notes == [says(2, "640 B", "768 B")]
    exchange = served(3, dedicated=True, levels=2)[0][2]
    assert exchange.facts.header == says("rank 0")
    assert exchange.facts.notes == [says("1.375 KiB")]
