"""Executions whose messages are packed in 16 bits, on a loopback world."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain.allreduce.wire_formats import TYPES, make_wire
from ringtrain.collectives.catalogue import HALVES, make_schedule
from ringtrain.collectives.execution.execute import Execution
from ringtrain.collectives.execution.task_graph import ADD, LOCAL, ROUND, SEND, SLOTS, TAKE, make_task_graph
from ringtrain.collectives.schedule import Move, Schedule, Step, bounds
from ringtrain.collectives.topology import filled
from ringtrain.ops.reference import ReferenceOps
from tests.collectives import executions
from tests.collectives.executions import DEADLINE_S, NESTED, NODES, OWNED, SIZES, check_restarts, normal
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.transports import DeviceTransport, delaying, recording
from tests.loopback.world import LoopbackWorld
from tests.tiers import thorough

ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
OPS = ReferenceOps("float32")
WIRE = {name: make_wire(name, OPS) for name in TYPES}
FEW = 15  # sums of smaller whole numbers are numbers of bfloat16 too
exact, total = partial(executions.exact, most=FEW), partial(executions.total, most=FEW)


def executed(schedule, inputs, wire, *how, **named):
    return executions.executed(schedule, inputs, *how, **named, wire=WIRE[wire])


def through(wire, x):
    """What arrives of ``x``."""
    packed, y = np.empty(x.size, WIRE[wire].dtype), np.empty_like(x)
    WIRE[wire].pack(x, packed)
    WIRE[wire].unpack(packed, y)
    return y


def same_everywhere(buffers, wire):
    for buffer in buffers:
        assert buffer.tobytes() == buffers[0].tobytes() == through(wire, buffer).tobytes()


# The wire changes the arithmetic and the size changes the schedule: each is varied beside one of the other.
SIZES_AND_WIRES = [(3, "float16"), *((size, "bfloat16") for size in (2, 5, 8))]
SIZES_AND_WIRES += thorough(*((size, "bfloat16") for size in SIZES if size not in (2, 5, 8)))


@pytest.mark.parametrize("size, wire", SIZES_AND_WIRES)
@pytest.mark.parametrize("name", OWNED)
def test_sums_that_are_exact_stay_exact_at_every_length(name, size, wire):
    for count in sorted({0, 1, size - 1, size, size + 1, 101, 10007}):
        inputs = [exact(rank, count) for rank in range(size)]
        for buffer in executed(make_schedule(name, size, rounded=True), inputs, wire):
            np.testing.assert_array_equal(buffer, total(size, count))


@pytest.mark.parametrize("size, wire", [(3, "float16"), (8, "bfloat16"), *thorough((5, "bfloat16"))])
@pytest.mark.parametrize("name", OWNED)
def test_random_sums_are_near_and_the_same_bits_everywhere(name, size, wire):
    inputs = normal(size, 1009)
    buffers = executed(make_schedule(name, size, rounded=True), inputs, wire, segment_bytes=300)
    same_everywhere(buffers, wire)
    wide = np.array(inputs, "f8")
    bound = size * (ROUNDOFF[wire] * np.abs(wide).sum(0) + 2.0**-25)
    error = np.abs(buffers[0] - wide.sum(0))
    assert (error <= 1.01 * bound).all() and error.any()


@pytest.mark.parametrize("counts", NODES)
@pytest.mark.parametrize("name", ["hierarchical", *(f"hierarchical:{pair}" for pair in NESTED)])
def test_on_any_nodes(name, counts):
    schedule = make_schedule(name, filled(counts), rounded=True)
    for count in (1, schedule.size + 1, 1009):
        inputs = normal(schedule.size, count)
        same_everywhere(executed(schedule, inputs, "bfloat16", segment_bytes=100), "bfloat16")


@pytest.mark.parametrize("wire", WIRE)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_sliced_is_what_numpy_makes_of_it(size, wire):
    """Of each slice the owner's own contribution as it is, the others' as they arrive, in the tree over ranks."""
    inputs, count = normal(size, 1009), 1009
    wanted, edges = np.empty(count, "f4"), bounds(count, size)
    for owner in range(size):
        part = slice(edges[owner], edges[owner + 1])
        sums = {rank: x[part] if rank == owner else through(wire, x[part]) for rank, x in enumerate(inputs)}
        width = 1
        while width < size:
            for left in range(0, size - width, 2 * width):
                sums[left] = sums[left] + sums[left + width]
            width *= 2
        wanted[part] = through(wire, sums[0])
    for buffer in executed(make_schedule("sliced", size, rounded=True), inputs, wire, segment_bytes=64):
        assert buffer.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_ring_rounds_at_every_hop(size):
    inputs = normal(size, 500)
    wanted, edges = np.empty(500, "f4"), bounds(500, size)
    for chunk in range(size):
        part = slice(edges[chunk], edges[chunk + 1])
        passed = inputs[chunk][part]
        for hop in range(1, size):
            passed = inputs[(chunk + hop) % size][part] + through("bfloat16", passed)
        wanted[part] = through("bfloat16", passed)
    for buffer in executed(make_schedule("ring", size, rounded=True), inputs, "bfloat16"):
        assert buffer.tobytes() == wanted.tobytes()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(OWNED),
    wire=st.sampled_from(list(WIRE)),
    size=st.integers(1, 6),
    count=st.integers(0, 200),
    segment_bytes=st.integers(1, 200),
    seed=st.integers(0, 5),
)
def test_any_length_any_segment_any_delay(name, wire, size, count, segment_bytes, seed):
    schedule, inputs = make_schedule(name, size, rounded=True), normal(size, count, seed)
    shaken = executed(schedule, inputs, wire, segment_bytes, lambda transport: delaying(transport, seed))
    same_everywhere(shaken, wire)
    assert shaken[0].tobytes() == executed(schedule, inputs, wire)[0].tobytes()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", HALVES)
def test_halves(name, size):
    inputs = normal(size, 1009)
    scatter, gather = (make_schedule(name, size, goal, rounded=True) for goal in ("reduce-scatter", "all-gather"))
    for buffer in executed(gather, inputs, "bfloat16", segment_bytes=100):
        edges = bounds(1009, gather.chunks)
        for chunk in range(gather.chunks):
            part = slice(edges[chunk], edges[chunk + 1])
            assert buffer[part].tobytes() == through("bfloat16", inputs[gather.owner(chunk)][part]).tobytes()
    whole = [exact(rank, 1009) for rank in range(size)]
    buffers, edges = executed(scatter, whole, "bfloat16"), bounds(1009, scatter.chunks)
    for chunk in range(scatter.chunks):
        part = slice(edges[chunk], edges[chunk + 1])
        np.testing.assert_array_equal(buffers[scatter.owner(chunk)][part], total(size, 1009)[part])


def test_infinity_and_nan_arrive_as_such():
    inputs = [np.array([1e5, -1e5, np.nan, 1, 65504], "f4"), np.array([1, 1, 1, np.inf, 65504], "f4")]
    with np.errstate(all="ignore"):
        for buffer in executed(make_schedule("ring", 2, rounded=True), inputs, "float16"):
            np.testing.assert_array_equal(buffer, [np.inf, -np.inf, np.nan, np.inf, np.inf])


@pytest.mark.parametrize("count", [5, 1003, *thorough(0, 1)])
@pytest.mark.parametrize("name", OWNED)
def test_half_the_bytes_are_sent_and_counted(name, count):
    def sent(transport, rounded, wire):
        seen, log = recording(transport)
        schedule = make_schedule(name, 4, rounded=rounded)
        run = Execution(schedule, seen, np.ones(count, "f4"), np.add, segment_bytes=40, wire=wire)
        run.run(DEADLINE_S)
        elements = [elements for verb, _, elements, _ in log if verb == "send"]
        assert max(elements, default=0) <= 40 // (2 if wire else 4)  # a segment is bytes of a message
        assert run.bytes_sent == (2 if wire else 4) * sum(elements)
        return run.bytes_sent

    plain = LoopbackWorld(4).run(lambda transport: sent(transport, False, None))
    packed = LoopbackWorld(4).run(lambda transport: sent(transport, True, WIRE["float16"]))
    assert [2 * nbytes for nbytes in packed] == plain


@pytest.mark.parametrize("name", OWNED)
def test_an_execution_is_started_again_and_again_and_allocates_once(name):
    check_restarts(make_schedule(name, 3, rounded=True), 50, FEW, WIRE["bfloat16"])


def test_what_is_packed_and_unpacked_later_is_waited_for():
    """All arithmetic only queued: a message that went too early would carry what was in its place before."""

    def body(transport):
        ops = FakeGpuOps()
        buffer, schedule = ops.from_host(exact(transport.rank, 500)), make_schedule("ring", 4, rounded=True)
        ops.synchronize()
        wire = make_wire("bfloat16", ops)
        run = Execution(schedule, DeviceTransport(transport, ops), buffer, ops.add, 0, 64, ops, wire=wire)
        run.run(DEADLINE_S)
        return ops.to_host(buffer)

    for buffer in LoopbackWorld(4).run(body):
        np.testing.assert_array_equal(buffer, total(4, 500))


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def waiting_for(plan, i):
    """(what piece i waits for before it starts, before it is added or unpacked)"""
    return tuple([j for j, after in enumerate(released) if i in after] for released in (plan.done_start, plan.done_add))


@pytest.mark.parametrize("name", OWNED)
def test_every_message_has_a_place_and_memory_is_bounded(name):
    for size in (2, 3, 8):
        for rank in range(size):
            plan = make_task_graph(make_schedule(name, size, rounded=True), rank, 10**5, 1000, packed=True)
            channels = {(p.kind == SEND, p.peer) for p in plan.tasks if p.kind not in LOCAL or p.kind == ROUND}
            assert all((p.slot >= 0) == (p.kind in (SEND, TAKE, ADD, ROUND)) for p in plan.tasks)
            assert plan.slots <= SLOTS * len(channels) and plan.segment == 1000
            holders = [{(p.kind == SEND, p.peer) for p in plan.tasks if p.slot == k} for k in range(plan.slots)]
            assert all(len(users) == 1 for users in holders)


def test_a_place_is_packed_into_again_only_when_what_it_held_is_sent():
    plan = make_task_graph(make_schedule("star", 2, rounded=True), 1, count=100, segment=10, packed=True)
    sends = [i for i, piece in enumerate(plan.tasks) if piece.kind == SEND]
    assert [plan.tasks[i].slot for i in sends[:5]] == [*range(4), 0]
    for before, i in zip(sends, sends[SLOTS:], strict=False):
        assert before in waiting_for(plan, i)[0]


def test_an_overwriting_arrives_at_once_and_waits_to_be_unpacked():
    schedules = make_schedule("ring", 3), make_schedule("ring", 3, rounded=True)
    plain, packed = (
        make_task_graph(s, 0, count=3, segment=1, packed=wired) for s, wired in zip(schedules, (0, 1), strict=True)
    )
    for plan, at_start in ((plain, True), (packed, False)):
        (sent,) = [i for i, p in enumerate(plan.tasks) if p.kind == SEND and p.step == 0]
        (taken,) = [i for i, p in enumerate(plan.tasks) if p.kind == TAKE and p.start == plan.tasks[sent].start]
        to_start, to_unpack = waiting_for(plan, taken)
        assert (sent in to_start, sent in to_unpack) == (at_start, not at_start)


def test_the_owner_rounds_between_its_last_addition_and_its_first_sending():
    plan = make_task_graph(make_schedule("ring", 3, rounded=True), 0, count=12, segment=2, packed=True)
    roundings = [i for i, p in enumerate(plan.tasks) if p.kind == ROUND]
    assert [(plan.tasks[i].start, plan.tasks[i].stop) for i in roundings] == [(4, 6), (6, 8)]
    for i in roundings:
        before = [plan.tasks[j] for j in waiting_for(plan, i)[0] if plan.tasks[j].kind != ROUND]
        after = [p for j, p in enumerate(plan.tasks) if i in waiting_for(plan, j)[0] and p.kind != ROUND]
        assert [(p.kind, p.start) for p in before] == [(ADD, plan.tasks[i].start)]
        assert [(p.kind, p.start) for p in after] == [(SEND, plan.tasks[i].start)]


def test_a_copy_elsewhere_is_not_rounded_nor_one_onto_itself_without_a_wire():
    """A rank sets its contribution aside, and comes back to it."""

    def steps(rank):
        yield Step((Move(rank, 0, 1),), (Move(rank, 1, 2),))
        yield Step((Move(rank, 1, 2),), (Move(rank, 0, 1),))

    schedule = Schedule("aside", 1, 1, steps, lambda rank: 0)
    itself = make_schedule("ring", 1, rounded=True)
    for (buffer,) in (executed(schedule, normal(1, 77), "bfloat16"), executions.executed(itself, normal(1, 77))):
        assert buffer.tobytes() == normal(1, 77)[0].tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_what_arrives_early_waits_for_what_it_overwrites(seed):
    """Rank 0 adds what rank 1 sends, and is then overwritten by rank 2, who waits for nobody."""

    def steps(rank):
        yield Step((Move(0, 0, 1),)) if rank else Step((), (Move(1, 0, 1, add=True),))
        if rank == 0:
            yield Step((), (Move(2, 0, 1),))

    schedule, inputs = Schedule("overwritten", 3, 1, steps, lambda rank: 1), normal(3, 77)
    buffers = executed(schedule, inputs, "bfloat16", 40, lambda transport: delaying(transport, seed))
    assert buffers[0].tobytes() == through("bfloat16", inputs[2]).tobytes()
