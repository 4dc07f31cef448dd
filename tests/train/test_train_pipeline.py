"""Training with fully connected layers on ranks of their own is training with them on every rank."""

import math
from itertools import count, pairwise, product

import numpy as np
import pytest
from small_runs import LAYERWISE, LOWER_THE_RATE, PAST_A_TAIL, assert_equal, everywhere, results, run_of, trained
from strategies import NETS, OPTIONS

from ringtrain.errors import DivergedError, StalledError
from ringtrain.exchange.model_parallel import layer_placement
from ringtrain.exchange.model_parallel.activation_messages import SUMS, ActivationChannel, GroupRows
from ringtrain.exchange.model_parallel.layer_placement import LayerPlacement
from ringtrain.exchange.model_parallel.pipeline import IN_FLIGHT
from ringtrain.ops.reference import ReferenceOps
from ringtrain.train.run.memory_trial import rehearse
from ringtrain.train.step.pipeline import Expect, Message, RunBackward, RunForward, messages_of, passes_of
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime
from tests.fakes.transports import DeviceTransport
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import thorough


@pytest.mark.parametrize("net", ["two", "three"])
def test_sums_are_the_same_in_every_run(net):
    """Of columns, and of whole layers."""

    def run(t):
        *_, checkpoint = trained(t, NETS[net], 8, fc="pipeline", fc_ranks=2, accumulate=3, lr=0.01)
        return checkpoint and {name: weight.tobytes() for name, weight in checkpoint.weights.items()}

    assert everywhere(5, run) == everywhere(5, run)


# ── instructions, messages ─────────────────────────────────────────────────────────────────────────────────────
def words(work):
    """ "E0a F0a B0a": what is done for micro-batch 0 of the first rank in front"""
    letters = {Expect: "E", RunForward: "F", RunBackward: "B"}
    return " ".join(f"{letters[type(one)]}{one.message.micro}{'abc'[one.message.place]}" for one in work)


def test_the_list_of_a_rank_in_front():
    messages = [Message(0, micro, 2) for micro in range(3)]
    assert words(passes_of(messages, IN_FLIGHT, receives=False)) == "F0a F1a B0a F2a B1a B2a"
    assert words(passes_of(messages[:1], IN_FLIGHT, receives=False)) == "F0a B0a"


@pytest.mark.parametrize(
    ("ahead", "work"),
    [
        (1, "E0a E0b E1a E1b F0a B0a E2a F0b B0b F1a B1a F1b B1b F2a B2a"),
        (3, "E0a E0b E1a E1b F0a F0b F1a B0a E2a F1b B0b F2a B1a B1b B2a"),
    ],
)
def test_the_lists_of_ranks_behind(ahead, work):
    """Rank a has three micro-batches, rank b two."""
    messages = [Message(place, micro, 1) for micro, place in product(range(3), range(2))][:-1]
    done = passes_of(messages, ahead, receives=True)
    assert words(done) == work
    back = [one for one in done if isinstance(one, RunBackward)]
    assert [one.accumulate for one in back] == [False, *[True] * 4]
    assert [one.last for one in back] == [*[False] * 4, True]


@pytest.mark.parametrize(
    ("total", "parts", "grain"), [(1, 1, 1), (2, 3, 1), (7, 2, 2), (30, 7, 1), (27, 4, 8), (9, 5, 4)]
)
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("places", [1, 2, 3])
def test_no_list_waits_for_ever_and_no_memory_is_used_twice(total, parts, grain, places, groups):
    """Each pass of a rank waits for the one before it in its list, and for its message."""
    every = messages_of(total, places, parts, grain)
    in_front = ([one for one in every if one.place == place] for place in range(places))
    lists = [passes_of(messages, IN_FLIGHT, receives=False) for messages in in_front if messages]
    behind = [passes_of(every, 1 + 2 * (groups - 1 - group), receives=True) for group in range(groups)]
    stages = [(0, work) for work in lists] + list(enumerate(behind, 1))
    forward, backward = set(), set()  # (stage, message)
    slots, posted = [{} for _ in stages], [set() for _ in stages]

    def can_run(number, stage, one):
        match one:
            case Expect(message):
                key = message.place, message.micro % IN_FLIGHT
                assert key not in posted[number]
                posted[number].add(key)
            case RunForward(message, slot):
                if stage and (stage - 1, message) not in forward:
                    return False
                assert slot not in slots[number]
                slots[number][slot] = message
                forward.add((stage, message))
            case RunBackward(message, slot):
                if stage < groups and (stage + 1, message) not in backward:
                    return False
                assert slots[number].pop(slot) == message
                posted[number].discard((message.place, message.micro % IN_FLIGHT))
                backward.add((stage, message))
        return True

    left = [list(work) for _, work in stages]
    while any(left):
        before = sum(map(len, left))
        for number, (stage, _) in enumerate(stages):
            while left[number] and can_run(number, stage, left[number][0]):
                left[number].pop(0)
        assert sum(map(len, left)) < before, "all wait"
    assert backward == forward == set(product(range(groups + 1), every))


def test_a_rank_in_front_names_no_layer_of_an_earlier_pass():
    """Each micro-batch has a context of its own; that of a rehearsal keeps its last layer."""

    def body(t):
        (run, _), done = run_of(t, NETS["dropout"], fc="pipeline"), []

        def perform(instruction):
            run.worker.run(instruction)
            done.append(t.activity.words())

        run.worker.hooks.perform = perform
        with run.batches(t, 0, 1) as batches:
            batch = next(batches)
            run.worker.rehearse(batch)
            run.worker.iterate(batch)
        return done

    assert everywhere(2, body)[0][:2] == [RunForward.doing, RunBackward.doing]


def test_messages_of_an_iteration_are_in_one_order_and_whole():
    wanted = [Message(0, 0, 2), Message(1, 0, 2), Message(2, 0, 2), Message(2, 1, 1)]
    assert messages_of(7, places=3, parts=2, grain=2) == wanted
    assert [len(messages_of(total, 3, 4, 1)) for total in (1, 5, 30)] == [1, 5, 12]


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("net", ["two", "three"])
def test_a_loss_that_is_not_finite_ends_all_and_names_the_layer(net):
    """Of which an FC rank has spoilt its own columns."""
    where = says("'fc1'", 0)

    def body(t):
        run, ops = run_of(t, NETS[net], fc="pipeline", fc_ranks=2)
        spans = {span.name: span for span in run.arena.spans}
        if t.rank in run.roles.parts and "fc1.bias" in spans:
            ops.fill(run.arena.weight(spans["fc1.bias"])[-1:], np.nan)
        with (
            run.batches(t, 0, 2) as batches,
            pytest.raises(DivergedError, match=LOWER_THE_RATE + says(f"{math.nan:g}", where)) as error,
        ):
            for batch in batches:
                run.worker.iterate(batch)
        return error.value.everywhere

    assert all(everywhere(4, body))


@pytest.mark.timing
@pytest.mark.parametrize(("fc_ranks", "iterations"), [(1, 0), (2, 0), (1, 1)])
def test_a_rank_that_does_not_come_is_named(fc_ranks, iterations):
    """By each rank behind, with the message of the iteration that waits."""

    def body(t):
        run, _ = run_of(t, NETS["dropout"], fc="pipeline", fc_ranks=fc_ranks)
        with run.batches(t, 0, iterations + 1) as batches:
            for _ in range(iterations):
                run.worker.iterate(next(batches))
            if t.rank < 2:
                return None
            run.exchange.mail.deadline_s = 0.05  # from here on nobody comes
            with pytest.raises(StalledError) as error:
                run.worker.iterate(next(batches))
        return str(error.value)

    _, _, *texts = everywhere(2 + fc_ranks, body)
    assert texts == [says("rank 0", f"micro-batch 0 of rank 0 in iteration {iterations + 1}")] * fc_ranks


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (2, 3), (4, 3)])
@pytest.mark.parametrize("rows", [1, 2, 5, 12])
def test_each_row_goes_from_the_rank_that_has_it_to_the_rank_that_needs_it(before, after, rows):
    """And its sums back to one rank alone, once. Some ranks have no row, if there are fewer than ranks."""
    width, peers = 2, (range(before), range(before, before + after))
    values = np.arange(rows * width, dtype="float32").reshape(rows, width)

    def body(t):
        mail, first = ActivationChannel(t, ReferenceOps(), 20.0), t.rank < before
        part = GroupRows(t.rank, before) if first else GroupRows(t.rank - before, after)
        crossing = mail.crossing(peers[first], 0, part, rows, (width,))
        start, stop = part.cut(rows)
        examples, labels = crossing.forward.batch(rows)
        if first:
            examples[...], labels[...] = np.arange(start, stop), np.arange(start, stop) + 100
            mail.send_on(crossing, rows, values[start:stop])
            assert mail.bytes_sent == (stop - start) * (8 + 4 + 4 * width)
            gradient, sums = mail.answer(crossing, rows, "message 1")
            assert np.array_equal(gradient, -values[start:stop])
            return sums.tolist()
        mail.expect(crossing.forward, rows)
        mail.wait(crossing.forward, "message 1")
        assert examples.tolist() == list(range(start, stop))
        assert labels.tolist() == list(range(start + 100, stop + 100))
        assert np.array_equal(crossing.forward.array(rows), values[start:stop])
        sums = np.array([stop - start, 1.0, 2.0]) if stop > start else np.zeros(SUMS)
        mail.send_back(crossing, rows, -values[start:stop], sums, "message 1")
        mail.wait(crossing.back, "message 1")
        return None

    sums = [each for each in LoopbackWorld(before + after).run(body) if each is not None]
    assert np.sum(sums, axis=0).tolist() == [rows, min(rows, after), 2 * min(rows, after)]


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
    flags = {"accumulate": 2, "clip_norm": 0.5, "bucket_bytes": 500, "settle_at": (3,)}
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


WAYS = {
    "plain": {},
    "micro-batches": {"accumulate": 3},
    "clipped": {"clip_norm": 0.5},
    "lamb": LAYERWISE["clipped lamb"],
    "lars": LAYERWISE["lars"],
    "micro-batches, clipped": {"accumulate": 2, "clip_norm": 0.1},
}


@pytest.mark.thorough
@pytest.mark.parametrize(("net", "fc_ranks"), list(product(("dropout", "two", "three"), (1, 2, 3))))
def test_any_number_of_ranks_in_front_of_columns_and_of_layers_is_one_rank(net, fc_ranks):
    overlaps = count()
    for front, flags in product(range(1, 6 - fc_ranks), WAYS.values()):
        overlap = ("backward", "none", "forward")[next(overlaps) % 3]
        options = {**FLAGS, "fc_ranks": fc_ranks, "overlap": overlap, "bucket_bytes": 500, **flags}
        ranks = results(front + fc_ranks, NETS[net], PAST_A_TAIL, settle_at=(1, 7, 8), **options)
        assert len(ranks) == front
        assert_equal(ranks, serial(net, **flags))


# ── from a checkpoint ─────────────────────────────────────────────────────────────────────────────────────────────────
LAST = PAST_A_TAIL


@pytest.mark.parametrize(("net", "flags"), [("two", OPTIONS["adamw"]), ("dropout", {})])
def test_it_goes_on_at_other_numbers_of_ranks_in_front_and_behind(net, flags):
    """A checkpoint of 2 + 3 ranks, of 3 + 1, of 2 + 2, and to the end on one rank that holds all."""
    checkpoint, begun = None, 0
    for ranks, fc_ranks, stop in ((5, 3, 4), (4, 1, 8), (4, 2, LAST)):
        options = {**FLAGS, "fc_ranks": fc_ranks, **flags}
        every = results(ranks, NETS[net], stop, start=begun, checkpoint=checkpoint, **options)
        checkpoint, begun = every[0][2], stop
    assert_equal(every, serial(net, **flags))
    one = results(1, NETS[net], LAST + 2, start=LAST, checkpoint=checkpoint, dtype="float64", **flags)
    assert_equal(one, serial(net, LAST + 2, **flags))
