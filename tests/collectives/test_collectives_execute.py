"""Executions on a loopback world, in which every send is synchronous."""

import numpy as np
import pytest

from ringtrain.collectives.catalogue import HALVES, SCHEDULES, make_schedule
from ringtrain.collectives.execution.execute import Execution
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.schedule import Move, Schedule, Step, bounds
from ringtrain.collectives.topology import filled
from ringtrain.transport.loopback import Loopback
from tests.collectives.executions import (
    DEADLINE_S,
    NESTED,
    NODES,
    SIZES,
    check_restarts,
    exact,
    executed,
    normal,
    stalled,
    total,
)
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.transports import DeviceTransport, delaying, recording
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import thorough


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_execution_is_started_again_and_again_and_allocates_once(name):
    check_restarts(make_schedule(name, 3), 100)


# A schedule does not know the type: one size is enough for the other types.
@pytest.mark.parametrize("size, dtype", [*((size, "float32") for size in SIZES), (3, "float64"), (3, "int32")])
@pytest.mark.parametrize("name", SCHEDULES)
def test_sums_are_exact_at_every_length(name, size, dtype):
    for count in sorted({0, 1, size - 1, size, size + 1, 101, 10007}):
        inputs = [exact(rank, count, dtype) for rank in range(size)]
        for buffer in executed(make_schedule(name, size), inputs):
            np.testing.assert_array_equal(buffer, total(size, count, dtype))


@pytest.mark.parametrize("counts", NODES)
@pytest.mark.parametrize("name", ["hierarchical", *(f"hierarchical:{pair}" for pair in NESTED)])
def test_sums_are_exact_on_any_nodes(name, counts):
    schedule = make_schedule(name, filled(counts))
    for count in sorted({0, 1, schedule.size - 1, schedule.size, schedule.size + 1, 101, 10007}):
        for buffer in executed(schedule, [exact(rank, count) for rank in range(schedule.size)], 1000):
            np.testing.assert_array_equal(buffer, total(schedule.size, count))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", HALVES)
def test_halves_do_what_they_say(name, size):
    for count in (0, 1, size, 1009):
        inputs = [exact(rank, count) for rank in range(size)]
        for goal, want in (("reduce-scatter", [total(size, count, "f4")] * size), ("all-gather", inputs)):
            schedule = make_schedule(name, size, goal)
            buffers, edges = executed(schedule, inputs, segment_bytes=100), bounds(count, schedule.chunks)
            for chunk in range(schedule.chunks):
                owner, part = schedule.owner(chunk), slice(edges[chunk], edges[chunk + 1])
                for buffer in [buffers[owner]] if goal == "reduce-scatter" else buffers:
                    np.testing.assert_array_equal(buffer[part], want[owner][part])


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_slices_change_no_bit(size):
    """Sliced adds in the tree over ranks, whoever owns the slice; so does the binomial tree, which has no slices."""
    inputs = normal(size, 1009)
    sliced, tree = (executed(make_schedule(name, size), inputs)[0] for name in ("sliced", "tree"))
    assert sliced.tobytes() == tree.tobytes()


def aside(rank):
    """Both ranks set their contribution aside, and come back to it."""
    yield Step((Move(rank, 0, 1),), (Move(rank, 1, 2),))
    yield Step((Move(1 - rank, 0, 1),), (Move(1 - rank, 2, 3),))
    yield Step((Move(rank, 2, 3),), (Move(rank, 0, 1, add=True),))
    yield Step((Move(rank, 1, 2),), (Move(rank, 0, 1),))
    yield Step((Move(rank, 2, 3),), (Move(rank, 0, 1, add=True),))


def swap(rank):
    """Scratch takes raw contributions."""
    yield Step((Move(1 - rank, 0, 2),), (Move(1 - rank, 2, 4),))
    yield Step((Move(rank, 2, 4),), (Move(rank, 0, 2, add=True),))


@pytest.mark.parametrize(("steps", "chunks"), [(aside, 1), (swap, 2)])
def test_a_copy_within_a_rank_and_into_scratch(steps, chunks):
    schedule = Schedule("by hand", 2, chunks, steps, lambda rank: 4)
    verify_schedule(schedule)
    for buffer in executed(schedule, [exact(rank, 77) for rank in range(2)], segment_bytes=40):
        np.testing.assert_array_equal(buffer, total(2, 77))


@pytest.mark.parametrize("name", SCHEDULES)
def test_random_sums_are_near_and_the_same_everywhere(name, size=5):
    inputs = normal(size, 10007)
    buffers = executed(make_schedule(name, size), inputs)
    wide = np.array(inputs, "f8")
    bound = size * np.finfo("f4").eps * np.abs(wide).sum(0)
    assert np.all(np.abs(buffers[0] - wide.sum(0)) <= bound)
    for buffer in buffers[1:]:
        assert buffer.tobytes() == buffers[0].tobytes()


@pytest.mark.parametrize("segment_bytes", [1, 64, *thorough(12, 1000)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_segments_smaller_than_chunks(name, segment_bytes):
    inputs = [exact(rank, 331, "f4") for rank in range(3)]
    for buffer in executed(make_schedule(name, 3), inputs, segment_bytes):
        np.testing.assert_array_equal(buffer, total(3, 331))


@pytest.mark.parametrize("seed", [0, 1, *thorough(2, 3, 4, 5)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_short_segments_that_end_late_and_in_any_order_change_no_bit(name, seed):
    inputs = normal(4, 500)
    plain = executed(make_schedule(name, 4), inputs)
    shaken = executed(make_schedule(name, 4), inputs, 64, lambda transport: delaying(transport, seed))
    assert [buffer.tobytes() for buffer in shaken] == [buffer.tobytes() for buffer in plain]


@pytest.mark.parametrize("name", SCHEDULES)
def test_several_buckets_in_flight_are_told_apart_by_tag(name):
    counts = [5, 1000, 1, 333]

    def body(transport):
        schedule = make_schedule(name, 3)
        buffers = [exact(transport.rank, count, "f8", tag + 1) for tag, count in enumerate(counts)]
        runs = [Execution(schedule, transport, b, np.add, tag, segment_bytes=256) for tag, b in enumerate(buffers)]
        for run in runs:
            run.start()
        for run in runs if transport.rank % 2 else reversed(runs):
            while not run.test():
                for other in runs:
                    other.test()
        return buffers

    for buffers in LoopbackWorld(3).run(body):
        for tag, (buffer, count) in enumerate(zip(buffers, counts, strict=True)):
            np.testing.assert_array_equal(buffer, total(3, count, "f8", tag + 1))


@pytest.mark.parametrize("count", [0, 3, 1003, *thorough(1, 4, 5)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_bytes_sent_are_counted_from_what_is_sent(name, count):
    def body(transport):
        seen, log = recording(transport)
        run = Execution(make_schedule(name, 4), seen, np.ones(count, "f4"), np.add, segment_bytes=40)
        run.run(DEADLINE_S)
        sent = [elements for verb, _, elements, _ in log if verb == "send"]
        assert 0 not in sent
        assert run.bytes_sent == 4 * sum(sent)
        return run.bytes_sent

    sent, schedule = LoopbackWorld(4).run(body), make_schedule(name, 4)
    edges = bounds(count, schedule.chunks)
    for rank in range(4):
        moves = [move for step in schedule.steps(rank) for move in step.sends if move.peer != rank]
        chunks = [chunk % schedule.chunks for move in moves for chunk in range(move.start, move.stop)]
        assert sent[rank] == 4 * sum(edges[chunk + 1] - edges[chunk] for chunk in chunks)


def test_receives_are_posted_before_sends():
    def body(transport):
        seen, log = recording(transport)
        run = Execution(make_schedule("ring", 2), seen, np.ones(8, "f4"), np.add)
        run.run(DEADLINE_S)
        return log[0][0]

    assert LoopbackWorld(2).run(body) == ["recv", "recv"]


@pytest.mark.parametrize("name", ["ring", "tree", "double-tree", "sliced", "butterfly", "circulant"])
def test_computed_data_is_waited_for_before_it_is_sent(name):
    """Additions that are only queued: a message that went too early would send what was there before, or overwrite what
    is still to be added."""

    def body(transport):
        ops = FakeGpuOps()
        buffer = ops.empty((500,))
        run = Execution(schedule, DeviceTransport(transport, ops), buffer, ops.add, segment_bytes=64, device=ops)
        for _ in range(3):
            ops.upload(exact(transport.rank, 500, "f4"), buffer)
            ops.synchronize()
            run.run(DEADLINE_S)
        return ops.to_host(buffer)

    schedule = make_schedule(name, 4)
    for buffer in LoopbackWorld(4).run(body):
        np.testing.assert_array_equal(buffer, total(4, 500))


@pytest.mark.timing
def test_a_missing_participant_is_named_and_a_second_start_refused():
    def body(transport):
        run = Execution(make_schedule("star", 3), transport, np.ones(4, "f4"), np.add, tag=6)
        return stalled(transport, run, says("star(ranks=3, chunks=1)", 6))

    root, _, leaf = LoopbackWorld(3).run(body)
    assert root == (
        "no progress for 0.05 s, waiting for rank 1 to send: rank 0 in star(ranks=3, chunks=1), tag 6, "
        "0 of 4 messages done"
    )
    assert "waiting for rank 0 to send: rank 2 in star" in leaf


def test_an_execution_that_was_never_started_is_done():
    run = Execution(make_schedule("ring", 1), Loopback(), np.ones(4, "f4"), np.add)
    assert run.test()
    run.start()
    assert run.test() and run.bytes_sent == 0
