"""A pipeline whose ranks divide columns: groups of any sizes behind one another, strategies in front, resumed runs."""

import math
import threading
from itertools import count, pairwise, product

import numpy as np
import pytest
from small_runs import (
    LAYERWISE,
    LOWER_THE_RATE,
    PAST_A_TAIL,
    assert_equal,
    everywhere,
    paced,
    results,
    run_of,
    same_weights,
    trained,
)
from strategies import NETS, OPTIONS

from ringtrain.errors import DivergedError
from ringtrain.exchange.announcements import Announcements
from ringtrain.exchange.model_parallel import layer_placement
from ringtrain.exchange.model_parallel.layer_placement import LayerPlacement
from ringtrain.train.run.memory_trial import rehearse
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime
from tests.fakes.transports import DeviceTransport
from tests.says import says
from tests.tiers import thorough

FLAGS = {"fc": "pipeline", "dtype": "float64", "deadline_s": 60.0}


def serial(net, iterations=PAST_A_TAIL, **flags):
    return results(1, NETS[net], iterations, dtype="float64", **flags)[0]


@pytest.fixture
def place(monkeypatch):
    """place(layer=ranks...): groups of these numbers of ranks, each from this layer on; small layers would cost more
    than they save."""

    def start(**parts):
        def placements(graph, size, fc_ranks):
            names = [node.name for node in graph.plan]
            starts = [0, *map(names.index, parts), len(names)]
            edges = np.cumsum([0, size - fc_ranks, *parts.values()]).tolist()
            groups = zip(pairwise(edges), pairwise(starts), strict=True)
            return [LayerPlacement(tuple(range(*ranks)), *layers) for ranks, layers in groups]

        monkeypatch.setattr(layer_placement, "place_layers", placements)
        return sum(parts.values())

    return start


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def grouped(place, parts, front, net, iterations=PAST_A_TAIL, **flags):
    fc_ranks = place(**parts)
    options = {**FLAGS, "fc_ranks": fc_ranks, **flags}
    ranks = everywhere(front + fc_ranks, lambda t: trained(t, NETS[net], iterations, **options))
    return ranks[:front]


@pytest.mark.parametrize(
    ("net", "parts"),
    [
        ("two", {"fc1": 2}),
        ("two", {"fc1": 3, "fc": 2}),
        ("two, ghost", {"fc1": 1, "fc": 3}),
        ("three", {"fc1": 2, "fc2": 1, "fc3": 3}),
        ("three", {"fc1": 1, "fc2": 3}),
        *thorough(("three", {"fc1": 4}), ("three", {"fc1": 2, "fc3": 2}), ("three, ghost", {"fc1": 3, "fc2": 1})),
    ],
    ids=str,
)
def test_groups_of_any_sizes_behind_one_another_are_one_rank(place, net, parts):
    """With layers between that draw by example, messages that are reshuffled from group to group, and tails."""
    ranks = grouped(place, parts, 2, net, accumulate=2, settle_at=(1, 8), clip_norm=0.5)
    assert_equal(ranks, serial(net, accumulate=2, clip_norm=0.5))


@pytest.mark.parametrize("optimizer", LAYERWISE)
def test_norms_of_whole_parameters_are_those_of_all_columns(place, optimizer):
    flags = LAYERWISE[optimizer]
    assert_equal(grouped(place, {"fc1": 2, "fc": 3}, 1, "two", **flags), serial("two", **flags))


def test_messages_of_fewer_examples_than_ranks_leave_some_without_a_row(place):
    """Batches of 5, with a tail of 2, in micro-batches of one example, on groups of three and of four."""
    flags = {"batch": 5, "start": 58, "iterations": 61, "lr": 0.01, "accumulate": 3}
    assert_equal(grouped(place, {"fc1": 3, "fc": 4}, 2, "two", **flags), serial("two", **flags))


def test_divided_columns_on_a_device_are_bit_by_bit_those_of_the_host(place):
    flags = {"accumulate": 2, "clip_norm": 0.5, "bucket_bytes": 500, "settle_at": (3,), "sync": "server"}
    host = grouped(place, {"fc1": 2, "fc": 2}, 2, "two", 4, **flags)

    def on_device(t, early):
        ops = FakeGpuOps(HostRuntime(early), "float64")
        return trained(DeviceTransport(t, ops), NETS["two"], 4, ops=ops, **{**FLAGS, "fc_ranks": 4, **flags})

    for early in (False, True):
        device = everywhere(6, lambda t, e=early: on_device(t, e))[:2]
        assert [weights.tobytes() for _, weights, _ in device] == [weights.tobytes() for _, weights, _ in host]


def test_a_rank_behind_rehearses_no_evaluation():
    """On a device ranks rehearse one: this rank holds a part of the network, and scores nothing."""

    def body(t):
        ops = FakeGpuOps(HostRuntime(), "float32")
        run, _ = run_of(DeviceTransport(t, ops), NETS["two"], ops, fc="pipeline", fc_ranks=2)
        with run.batches(t, 0, 1) as batches:
            rehearse(run, ops, next(batches))
        return run.worker.space.nbytes > 0

    assert everywhere(3, body) == [True, False, False]


# ── all strategies in front ───────────────────────────────────────────────────────────────────────────────────────────
# The least ranks in front, and flags.
IN_FRONT = {
    "allreduce": (1, {}),
    "sharded": (1, {"sync": "sharded"}),
    "master": (1, {"sync": "master"}),
    "server": (1, {"sync": "server"}),
    "two servers": (2, {"sync": "server", "servers": 2}),
    "dedicated server": (2, {"sync": "server", "dedicated": True}),
    "server of two levels": (2, {"sync": "server", "server_levels": 2}),
}
WAYS = {
    "plain": {},
    "micro-batches": {"accumulate": 3},
    "clipped": {"clip_norm": 0.5},
    "lamb": LAYERWISE["clipped lamb"],
    "lars": LAYERWISE["corrected lars"],
    "micro-batches, clipped": {"accumulate": 2, "clip_norm": 0.1},
}
OVERLAPS = ("backward", "none", "forward")


@pytest.mark.thorough
@pytest.mark.parametrize(("front", "net", "fc_ranks"), list(product(IN_FRONT, ("dropout", "two", "three"), (1, 2, 3))))
def test_every_strategy_in_front_of_columns_and_of_layers_is_one_rank(front, net, fc_ranks):
    least, flags = IN_FRONT[front]
    for others, (number, way) in product(range(least, 6 - fc_ranks), enumerate(WAYS)):
        overlap = "backward" if front == "master" else OVERLAPS[(number + others + fc_ranks) % 3]
        nodes = 2 if front == "server of two levels" else 1
        options = {**FLAGS, "fc_ranks": fc_ranks, "overlap": overlap, "bucket_bytes": 500, **flags, **WAYS[way]}
        ranks = results(others + fc_ranks, NETS[net], PAST_A_TAIL, nodes, settle_at=(1, 7, 8), **options)
        assert len(ranks) == others
        assert_equal(ranks, serial(net, **WAYS[way]))


# ── from a checkpoint ─────────────────────────────────────────────────────────────────────────────────────────────────
LAST = PAST_A_TAIL


@pytest.mark.parametrize(
    ("net", "flags"), [("two", {"sync": "server", "servers": 2, **OPTIONS["adamw"]}), ("dropout", {"sync": "sharded"})]
)
def test_it_goes_on_at_other_numbers_of_ranks_in_front_and_behind(net, flags):
    """A checkpoint of 2 + 3 ranks, of 3 + 1, of 2 + 2, and to the end on one rank that holds all."""
    checkpoint, begun = None, 0
    for ranks, fc_ranks, stop in ((5, 3, 4), (4, 1, 8), (4, 2, LAST)):
        options = {**FLAGS, "fc_ranks": fc_ranks, **flags}
        every = results(ranks, NETS[net], stop, start=begun, checkpoint=checkpoint, **options)
        checkpoint, begun = every[0][2], stop
    option = {name: value for name, value in flags.items() if name not in ("sync", "servers")}
    assert_equal(every, serial(net, **option))
    one = results(1, NETS[net], LAST + 2, start=LAST, checkpoint=checkpoint, dtype="float64", **option)
    assert_equal(one, serial(net, LAST + 2, **option))


# ── ranks in front that wait for no other ─────────────────────────────────────────────────────────────────────────────
LEARN = {**FLAGS, "lr": 0.02, "augment": False, "sync": "server"}


@pytest.mark.timing
@pytest.mark.parametrize(
    "flags",
    [
        {"staleness": 2, "fc_ranks": 2, "accumulate": 2},
        *thorough({"staleness": 3, "servers": 2, "dedicated": True, "overlap": "forward", "clip_norm": 1.0}),
    ],
)
def test_with_staleness_it_learns_and_goes_on_at_other_numbers_of_ranks(in_turns, flags):
    """Down to a share of the first loss; that of serial training is 0.1."""
    options = {**LEARN, **flags}
    begun = in_turns(5, lambda t: trained(t, NETS["ghost"], 40, settle_at=(7,), **options))
    front = [each for each in begun if each[1] is not None]
    assert same_weights(front) and len(front[0][0]) == 40
    again = {**options, "fc_ranks": 3 - options.get("fc_ranks", 1)}
    ranks = in_turns(5, lambda t: trained(t, NETS["ghost"], 80, start=40, checkpoint=begun[0][2], **again))
    assert np.mean(ranks[0][0][-10:]) < 0.25 * begun[0][0][0]


@pytest.mark.timing
@pytest.mark.parametrize(
    ("net", "share", "flags"),
    [
        ("ghost", 0.35, {"fc_ranks": 2, "accumulate": 2}),
        *thorough(
            ("two", 0.45, {"fc_ranks": 3, "servers": 2}), ("ghost", 0.35, {"dedicated": True, "overlap": "forward"})
        ),
    ],
)
def test_asynchronously_all_parts_are_trained_on_and_it_learns(in_turns, net, share, flags):
    """Down to a share of the first loss; that of serial training is 0.1, and 0.37 of net "two"."""
    ranks = 4 if "fc_ranks" not in flags else 2 + flags["fc_ranks"]
    every = in_turns(ranks, lambda t: paced(t, NETS[net], 80, **{**LEARN, "asynchronous": True, **flags}))
    front = [each for each in every if each[1] is not None]
    assert same_weights(front)
    losses, _, lag = every[0]
    assert len(losses) == 80 and np.mean(losses[-10:]) < share * losses[0]
    assert sum(lag.updates.values()) == 80 * len(lag.updates)


@pytest.mark.timing
@pytest.mark.parametrize("flags", [{"staleness": 2}, {"asynchronous": True}], ids=str)
def test_goodbyes_may_come_after_the_choice_of_the_first_of_a_group(in_turns, monkeypatch, flags):
    """The second of two ranks that divide columns sees headers late, at every meeting."""
    arrived = Announcements.arrived
    looks = count()

    def late(receiver):
        slow = threading.current_thread().name == "rank 3" and len(receiver._numbers) > 2  # a header, and no choice
        return None if slow and next(looks) % 7 else arrived(receiver)

    monkeypatch.setattr(Announcements, "arrived", late)
    every = in_turns(4, lambda t: paced(t, NETS["ghost"], 8, **{**LEARN, "fc_ranks": 2, **flags, "deadline_s": 20.0}))
    assert same_weights(every[:2]) and len(every[0][0]) == 8


def diverging(t, iterations, **flags):
    """Train up to a loss that is not finite, which may be found at the next meeting."""
    run, _ = run_of(t, NETS["dropout"], iterations=iterations, **{**LEARN, "lr": 1e200, **flags})
    with (
        run.batches(t, 0, iterations) as batches,
        pytest.raises(DivergedError, match=LOWER_THE_RATE + says(f"{math.nan:g}")) as error,
    ):
        for batch in batches:
            run.worker.iterate(batch, batches.peek)
        run.exchange.serving.drain_peers()
        run.worker.drain()
    return error.value.everywhere


BEHIND = [
    pytest.param(count, {"staleness": 2, **flags}, marks=pytest.mark.timing, id=f"{count} {flags}")
    for count in (3, 12)
    for flags in ({"fc_ranks": 2}, {"inject_slowdown": "0:40"})
]


@pytest.mark.parametrize(
    ("iterations", "flags"),
    [
        *thorough(*((12, {"fc_ranks": 2, "sync": sync}) for sync in ("allreduce", "master"))),
        *thorough((12, {"fc_ranks": 2, "servers": 2})),
        (12, {"sync": "sharded", "fc_ranks": 2, "overlap": "forward"}),
        (12, {"dedicated": True, "fc_ranks": 2}),
        *BEHIND,
    ],
)
def test_a_loss_that_is_not_finite_ends_ranks_with_columns_and_ranks_that_are_behind(iterations, flags):
    """On the way; and after the last iteration, when nobody sends messages any more and a later loss is under way."""
    assert all(everywhere(4, lambda t: diverging(t, iterations, **flags)))


@pytest.mark.timing
def test_a_loss_that_is_not_finite_ends_ranks_that_take_parts(in_turns):
    def body(t):
        with pytest.raises(DivergedError):
            paced(t, NETS["dropout"], 12, **{**LEARN, "lr": 1e200}, asynchronous=True, fc_ranks=2)
        return True

    assert all(in_turns(4, body))
