"""What ranks do outside of collectives is on the board, and told where they wait there for one another."""

from dataclasses import replace

import pytest

from ringtrain.errors import StalledError
from ringtrain.monitor import diagnosis
from ringtrain.monitor.flight_recorder import FlightRecorder, RankRecord
from ringtrain.monitor.guard import Guard
from ringtrain.transport.activity import EXCHANGE
from ringtrain.transport.waiting import placed, wait_for
from tests.loopback.world import LoopbackWorld
from tests.says import says

pytestmark = pytest.mark.timing


def rows_of(*iterations, **more):
    return [
        RankRecord(rank, {}, iteration, False, f"node{rank // 2}", **more) for rank, iteration in enumerate(iterations)
    ]


def test_a_row_says_what_its_rank_does_and_where():
    def body(t):
        t.activity.host = f"node{t.rank}"
        board = FlightRecorder(t)
        if t.rank == 1:
            board.do("writing checkpoint " + "x" * 300, 12.25, True, 3)
        t.barrier()
        return board.read()[1]

    for row in LoopbackWorld(2).run(body):
        assert (row.host, row.doing_s, row.limited) == ("node1", 12.25, True)
        assert row.doing == ("writing checkpoint " + "x" * 300)[:152]


def test_a_stage_that_gets_on_is_progress():
    (board,) = LoopbackWorld(1).run(FlightRecorder)
    before = board.history.copy()
    board.do("opening data", 1.0, True, 0)
    assert (board.history == before).all()
    board.do("opening data", 2.0, True, 1)
    assert (board.history != before).any()


def test_whoever_is_behind_is_named_by_its_host_and_every_rank_is_told_with_what_it_does():
    assert diagnosis.behind(rows_of(5, 5, 5)) == [] and diagnosis.held_up(rows_of(5, 5)) == ""
    assert diagnosis.held_up(rows_of(5, 4, 5, 4)) == says("ranks 1, 3 (node0, node1)")
    rows = rows_of(5, 4, 4, doing=EXCHANGE)  # each may wait for others
    assert diagnosis.behind(rows) == [1, 2] and diagnosis.behind([*rows[:2], replace(rows[2], doing="forward")]) == [2]
    rows = rows_of(5, 4, 5)
    assert diagnosis.held_up([*rows[:2], replace(rows[2], silent_s=9.0)]) == says("rank 2 (node1)")
    rows = rows_of(5, 4, 0, doing="backward, layer 'conv2'", doing_s=3.14159)
    rows.append(RankRecord(3, {}, 6, True, "node1"))
    rows[2] = replace(rows[2], silent_s=9.0)
    assert diagnosis.rank_states(rows, 1, "ranks of other nodes") == [
        says("activity", "every"),
        "  rank 0 (node0): iteration 5, backward, layer 'conv2' for 3.14 s",
        "  rank 1 (node0): iteration 4, backward, layer 'conv2' for 3.14 s",
        says("  rank 2 (node1): backward, layer 'conv2'; ", "9 s"),
        "  rank 3 (node1): iteration 6, ended",
        says(1, "ranks of other nodes"),
    ]
    rows = [RankRecord(0, {}, 3, False, "a"), RankRecord(1, {}, 3, False, "b", "writing checkpoint c.h5", 301.2, True)]
    expected = says("begun none", "in iteration 3", "writing checkpoint c.h5 for 301 s")
    assert list(map(diagnosis.whereabouts, rows)) == [says("begun none", "in iteration 3"), expected]
    assert placed([2, 0], ["a", "b", "a"]) == "ranks 0, 2 (a)" and placed([0, 1], ["a", "b"]) == "ranks 0, 1 (a, b)"
    assert placed([1], ["", ""]) == "rank 1"
    assert placed(range(11), [f"n{i}" for i in range(11)]).endswith("n7 and 3 more)")


def test_a_wait_outside_of_collectives_is_told_with_what_all_ranks_do():
    def body(t):
        t.activity.host = "node7"
        guard = Guard(t, 20.0, turn_s=0.0)
        guard.watchdog.end()  # what its thread does is done here
        guard.iterate(4 + t.rank)
        t.activity.at("the update")
        guard.write_stage()
        t.barrier()
        text = None
        if t.rank == 1:
            with pytest.raises(StalledError) as raised:
                wait_for(lambda: False, 0.01, lambda: "rank 0 to send (tag 7)")
            assert raised.value.awaited == "rank 0 to send (tag 7)"
            error = guard.with_rank_states(raised.value)
            assert guard.with_rank_states(error) is error and error.exit_code == 4
            text = str(error)
        t.barrier()
        guard.close()
        return text

    _, text = LoopbackWorld(2).run(body)
    assert text.splitlines() == [
        says("0.01 s", "rank 0 to send (tag 7)", "rank 0 (node7)"),
        says("activity", "every"),
        "  rank 0 (node7): iteration 4, the update",
        "  rank 1 (node7): iteration 5, the update",
    ]


def test_the_one_that_is_told_of_shows_its_stack_once(monkeypatch):
    shown = []
    monkeypatch.setattr("ringtrain.monitor.guard.stack_dump.write_stacks", lambda activity, rank: shown.append(rank))

    def body(t):
        guard = Guard(t, 20.0, turn_s=0.0)
        guard.watchdog.end()  # what its thread does is done here
        for _ in range(2 if t.rank == 1 else 5):
            guard.recorder.end(guard.recorder.begin(7))
        t.barrier()
        if t.rank == 0:
            guard.recorder.report(4)
        t.barrier()
        guard._look()
        guard._look()
        t.barrier()
        guard.recorder.leave()

    LoopbackWorld(3).run(body)
    assert shown == [1]
