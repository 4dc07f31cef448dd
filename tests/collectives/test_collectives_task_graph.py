"""Plans as data: where chunks lie, how moves are cut, and what waits for what."""

from itertools import pairwise

import pytest

from ringtrain.collectives.catalogue import SCHEDULES, make_schedule
from ringtrain.collectives.execution.task_graph import ADD, FOLD, SEND, SLOTS, TAKE, BufferLayout, make_task_graph
from ringtrain.collectives.schedule import Move, Schedule, Step, bounds


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 10007, 2**31 + 1, 3 * 2**40 + 5])
@pytest.mark.parametrize("chunks", [1, 2, 3, 5, 17])
def test_chunks_cover_the_buffer_evenly(count, chunks):
    edges = bounds(count, chunks)
    widths = [b - a for a, b in pairwise(edges)]
    assert edges[0] == 0 and edges[-1] == count and len(widths) == chunks
    assert max(widths) - min(widths) <= 1


def test_moves_are_cut_into_segments_and_need_no_memory_and_no_32_bit_counts_and_empty_ones_vanish():
    plan = make_task_graph(make_schedule("ring", 3), 1, count=3 * 2**40, segment=2**38)
    assert max(piece.stop for piece in plan.tasks) == 3 * 2**40
    assert {piece.stop - piece.start for piece in plan.tasks} == {2**38}
    assert len(plan.tasks) == 4 * (4 + 4)
    plan = make_task_graph(make_schedule("star", 2), 1, count=10, segment=4)
    sent = [(p.start, p.stop) for p in plan.tasks if p.kind == SEND]
    assert sent == [(0, 4), (4, 8), (8, 10)]
    assert not make_task_graph(make_schedule("ring", 4), 0, count=0, segment=4).tasks
    assert len(make_task_graph(make_schedule("ring", 4), 0, count=1, segment=4).tasks) < 12


def test_two_ranks_agree_on_every_message():
    for name in SCHEDULES:
        for count in (0, 1, 4, 5, 6, 1000):
            plans = [make_task_graph(make_schedule(name, 5), rank, count, segment=64) for rank in range(5)]
            for a in range(5):
                for b in range(5):
                    sent = [p.stop - p.start for p in plans[a].tasks if p.kind == SEND and p.peer == b]
                    got = [p.stop - p.start for p in plans[b].tasks if p.kind in (TAKE, ADD) and p.peer == a]
                    assert sent == got


def test_a_segment_is_sent_on_as_soon_as_it_is_added():
    """Ring of three, chunks of two segments: what a send of the second step waits for is its own segment alone."""
    plan = make_task_graph(make_schedule("ring", 3), 0, count=12, segment=2)
    for i, piece in enumerate(plan.tasks):
        if piece.kind == SEND and piece.step == 1:
            before = [plan.tasks[j] for j in range(len(plan.tasks)) if i in plan.done_start[j]]
            assert [(p.kind, p.start, p.stop) for p in before] == [(ADD, piece.start, piece.stop)]


def test_what_is_still_being_sent_or_added_is_not_overwritten():
    plan = make_task_graph(make_schedule("ring", 3), 0, count=3, segment=1)
    (first_send,) = [i for i, p in enumerate(plan.tasks) if p.kind == SEND and p.step == 0]
    (overwriting,) = [i for i, p in enumerate(plan.tasks) if p.kind == TAKE and p.start == plan.tasks[first_send].start]
    assert overwriting in plan.done_start[first_send]
    plan = make_task_graph(make_schedule("recursive-doubling", 4), 0, count=2, segment=2)  # in scratch
    first_fold, second_take = (
        [i for i, p in enumerate(plan.tasks) if p.kind == kind][at] for kind, at in ((FOLD, 0), (TAKE, 1))
    )
    assert second_take in plan.done_start[first_fold]


def test_the_root_adds_in_the_order_of_ranks_and_peers_have_their_own_staging():
    plan = make_task_graph(make_schedule("star", 4), 0, count=100, segment=10)
    adds = [i for i, p in enumerate(plan.tasks) if p.kind == ADD]
    assert plan.slots == 3 * SLOTS
    for peer in (1, 2, 3):
        slots = {plan.tasks[i].slot for i in adds if plan.tasks[i].peer == peer}
        assert len(slots) == SLOTS
        for other in {1, 2, 3} - {peer}:
            assert not slots & {plan.tasks[i].slot for i in adds if plan.tasks[i].peer == other}
    for i in adds:
        followers = [plan.tasks[j].peer for j in plan.done_add[i]]
        assert followers == ([plan.tasks[i].peer + 1] if plan.tasks[i].peer < 3 else [])


def test_scratch_is_as_large_as_the_chunks_it_stands_for():
    steps = (Step(recvs=(Move(1, 3, 5), Move(1, 8, 9))),)
    layout = BufferLayout(steps, chunks=3, count=8)  # chunks of 2, 3, 3
    assert [layout.spans[i] for i in range(3)] == [(0, 2), (2, 5), (5, 8)]
    assert layout.span(Move(1, 3, 5)) == (8, 13)
    assert layout.span(Move(1, 8, 9)) == (13, 16)
    assert make_task_graph(Schedule("s", 2, 3, lambda rank: steps, lambda rank: 0), 0, 8, 100).scratch == 8


def test_a_fold_waits_for_what_it_reads_and_lets_go_what_reads_it():
    """Sliced, two ranks: rank 0 adds what is in scratch to its slice, segment by segment, and sends the sum."""
    plan = make_task_graph(make_schedule("sliced", 2), 0, count=8, segment=2)
    folds = [i for i, piece in enumerate(plan.tasks) if piece.kind == FOLD]
    assert [(plan.tasks[i].source, plan.tasks[i].start) for i in folds] == [(8, 0), (10, 2)]
    for i in folds:
        before = [p.kind for j, p in enumerate(plan.tasks) if i in plan.done_start[j]]
        after = [plan.tasks[j] for j in plan.done_start[i]]
        assert before == [TAKE] and plan.start_waits[i] == 1
        assert [(p.kind, p.start) for p in after] == [(SEND, plan.tasks[i].start)]
