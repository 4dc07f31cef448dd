"""Training with fully connected layers on ranks of their own is training with them on every rank."""

import math
import threading
from dataclasses import replace
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

from ringtrain.errors import DivergedError, StalledError, TransportError
from ringtrain.exchange.announcements import Announcements
from ringtrain.exchange.model_parallel import layer_placement
from ringtrain.exchange.model_parallel.activation_messages import GOODBYE, SUMS, ActivationChannel, GroupRows, Header
from ringtrain.exchange.model_parallel.layer_placement import LayerPlacement
from ringtrain.ops.reference import ReferenceOps
from ringtrain.train.pipeline.fc_messages import BatchCut, messages_of
from ringtrain.train.pipeline.front_stage import RecvBackward, SendForward, front_instructions
from ringtrain.train.run.memory_trial import rehearse
from ringtrain.train.step.instructions import CheckLoss, NoExamples, ReduceLoss, Update
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
END = (ReduceLoss(), CheckLoss(), Update())


def test_instructions_of_a_rank_with_images():
    send, recv = SendForward, RecvBackward
    assert front_instructions(0, 2) == (ReduceLoss(), NoExamples(), CheckLoss(), Update())
    assert front_instructions(1, 3) == (send(0), recv(0, True), *END)
    work = send(0), send(1), recv(0, False), send(2), recv(1, False), recv(2, True)
    assert front_instructions(3, 2) == (*work, *END)


def test_a_rank_in_front_names_no_layer_of_an_earlier_pass():
    """Each micro-batch has a context of its own; that of a rehearsal keeps its last layer."""

    def body(t):
        (run, _), words = run_of(t, NETS["dropout"], fc="pipeline"), []

        def perform(instruction):
            run.worker.run(instruction)
            words.append(t.activity.words())

        run.worker.hooks.perform = perform
        with run.batches(t, 0, 1) as batches:
            batch = next(batches)
            run.worker.rehearse(batch)
            run.worker.iterate(batch)
        return words

    assert everywhere(2, body)[0][:2] == [SendForward.doing, RecvBackward.doing]


@pytest.mark.parametrize("in_flight", [1, 2, 3])
@pytest.mark.parametrize("micro", [1, 2, 3, 7])
def test_so_many_are_away_and_no_more(micro, in_flight):
    away, most = set(), 0
    for instruction in front_instructions(micro, in_flight):
        match instruction:
            case SendForward(number):
                away.add(number)
            case RecvBackward(number, last):
                away.remove(number)
                assert last == (number == micro - 1)
        most = max(most, len(away))
    assert not away and most == min(micro, in_flight)


def test_messages_of_an_iteration_are_in_one_order_and_whole():
    assert messages_of(5, 7, BatchCut(3, 2, 2, 2)) == [(5, 0, 0), (5, 1, 0), (5, 2, 0), (5, 2, 1)]
    assert [len(messages_of(0, total, BatchCut(3, 4, 1, 3))) for total in (1, 5, 30)] == [1, 5, 12]


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
    """By the rank behind, with the message of the iteration that waits; of two that divide columns, the second waits
    for the first one's choice."""

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
    message = f"micro-batch 0 of rank 0 in iteration {iterations + 1}"
    awaited = [says("rank 0", message), says(2, "next", "micro-batch")]
    for text, wanted in zip(texts, awaited[:fc_ranks], strict=True):
        assert wanted.matches(text)


def test_a_rank_in_another_iteration_is_named():
    def body(t):
        run, _ = run_of(t, NETS["dropout"], fc="pipeline")
        run.exchange.mail.deadline_s = 1.0  # the last rank gives no answer
        with run.batches(t, 0, 1) as batches, pytest.raises((TransportError, StalledError)) as error:
            run.worker.iterate(replace(next(batches), iteration=4 if t.rank == 0 else 0))
        return str(error.value)

    received, wanted = (f"micro-batch 0 of rank 0 in iteration {number}" for number in (5, 1))
    assert everywhere(2, body)[1] == says(0, received, wanted)


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (2, 3), (4, 3)])
@pytest.mark.parametrize("rows", [1, 2, 5, 12])
def test_each_row_goes_from_the_rank_that_has_it_to_the_rank_that_needs_it(before, after, rows):
    """And its sums back to one rank alone, once. Some ranks have no row, if there are fewer than ranks."""
    width, peers = 2, (range(before), range(before, before + after))
    values = np.arange(rows * width, dtype="float32").reshape(rows, width)
    header = Header(4, 0, 1, rows)

    def body(t):
        mail, first = ActivationChannel(t, ReferenceOps(), 20.0), t.rank < before
        part = GroupRows(t.rank, before) if first else GroupRows(t.rank - before, after)
        forward, back = crossing = mail.crossing(peers[first], 0, part, rows, (width,))
        start, stop = part.cut(rows)
        examples, labels = forward.batch(rows)
        if first:
            examples[...], labels[...] = np.arange(start, stop), np.arange(start, stop) + 100
            mail.send_on(crossing, header, values[start:stop], None)
            assert mail.bytes_sent == (stop - start) * (8 + 4 + 4 * width)
            mail.wait(back)
            gradient, sums = mail.answer(crossing, header)
            assert np.array_equal(gradient, -values[start:stop])
            if start < stop:
                sent, wanted = (f"micro-batch {micro} of rank 0 in iteration 5" for micro in (1, 0))
                with pytest.raises(TransportError, match=says("rank", sent, wanted)):
                    mail.answer(crossing, replace(header, micro=0))
            return sums.tolist()
        mail.expect(forward, rows)
        mail.wait(forward)
        assert examples.tolist() == list(range(start, stop))
        assert labels.tolist() == list(range(start + 100, stop + 100))
        assert np.array_equal(forward.array(rows), values[start:stop])
        back.report(header.id, rows, np.array([stop - start, 1.0, 2.0]) if stop > start else np.zeros(SUMS))
        back.array(rows)[...] = -values[start:stop]
        mail.send(back, rows)
        mail.wait(back)
        return None

    sums = [each for each in LoopbackWorld(before + after).run(body) if each is not None]
    assert np.sum(sums, axis=0).tolist() == [rows, min(rows, after), 2 * min(rows, after)]


def test_headers_follow_one_another():
    headers = [Header(4, 0, micro, 3 + micro, 30, 29) for micro in range(3)]

    def body(t):
        mail = ActivationChannel(t, ReferenceOps(), 20.0)
        if t.rank == 0:
            sender = mail.headers_to((1, 2), 0)
            for header in headers:
                mail.announce(sender, header)
            mail.say_goodbye(sender, 0)
            assert mail.bytes_sent == 4 * 2 * 6 * 8
            return [*headers, Header(0, 0, 0, GOODBYE)]
        receiver, received = mail.headers_from(0, 0), []
        assert receiver.arrived() is None
        while len(received) < 4:
            receiver.listen()
            numbers = receiver.arrived()
            received += [Header(*numbers)] if numbers else []
        return received

    first, *others = LoopbackWorld(3).run(body)
    assert others == [first] * 2 and headers[1].id == (4, 0, 1)


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
