"""Pipelining, as a function of schedules; and the timetable under it."""

import pytest

from ringtrain.collectives.algorithms.pipelined import pipelined
from ringtrain.collectives.algorithms.timetable import TimedMessage, rounds, timed_steps
from ringtrain.collectives.catalogue import HALVES, SCHEDULES, make_schedule
from ringtrain.collectives.matching import all_steps, messages
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.collectives.topology import filled
from ringtrain.errors import ScheduleError, UsageError
from tests.says import says


@pytest.mark.parametrize("counts", [(1,), (2,), (3,), (5,), (8,), (4, 2, 3)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_pipelined_schedules_are_proved_and_a_round_longer_for_each_piece(name, counts):
    original = make_schedule(name, filled(counts))
    before = verify_schedule(original)
    for pieces in (1, 2, 5):
        schedule = pipelined(original, pieces)
        proof = verify_schedule(schedule)
        assert schedule.chunks == pieces * original.chunks
        assert proof.sent == tuple(pieces * sent for sent in before.sent)
        assert proof.rounds <= before.rounds + pieces - 1


@pytest.mark.parametrize("name", HALVES)
def test_halves_and_pipelined_schedules_are_pipelined_alike(name):
    for goal in ("reduce-scatter", "all-gather"):
        verify_schedule(pipelined(pipelined(make_schedule(name, 5, goal), 2), 3))


def test_a_chain_keeps_all_of_its_ranks_busy():
    """0 → 1 → 2, pieces a b c: as in the drawing."""
    steps = [
        [Step(sends=(Move(1, 0, 1),))],
        [Step(recvs=(Move(0, 0, 1),)), Step(sends=(Move(2, 0, 1),))],
        [Step(recvs=(Move(1, 0, 1),))],
    ]
    chain = Schedule("chain", 3, 1, lambda rank: steps[rank], lambda rank: rank < 2, "all-gather", lambda chunk: 0)
    schedule = pipelined(chain, 3)
    assert verify_schedule(schedule).rounds == 4
    assert schedule.steps(1)[1] == Step(sends=(Move(2, 0, 1),), recvs=(Move(0, 1, 2),))

    # Scratch moves with its piece.
    schedule = pipelined(make_schedule("recursive-doubling", 2), 2)
    received = [move.start for step in schedule.steps(0) for move in step.recvs if move.peer == 1]
    assert received == [2, 3]  # the buffer is chunks 0 and 1 now, and scratch follows it


def test_less_than_a_piece_and_a_schedule_that_deadlocks_are_refused():
    with pytest.raises(UsageError, match=says(0, "pipelined", "segments")):
        pipelined(make_schedule("ring", 2), 0)
    steps = [[Step(recvs=(Move(1 - rank, 0, 1),)), Step(sends=(Move(1 - rank, 0, 1),))] for rank in range(2)]
    stuck = Schedule("stuck", 2, 1, lambda rank: steps[rank], lambda rank: 1)
    with pytest.raises(ScheduleError, match=says(f"{stuck!r}", 2)):
        pipelined(stuck, 2)


def test_messages_of_one_time_are_one_step_and_arithmetic_within_a_rank_takes_no_round():
    one, two = (TimedMessage((0, 0), 0, peer, Move(peer, 0, 1), Move(0, 0, 1)) for peer in (1, 2))
    late = TimedMessage((1, 0), 2, 0, Move(0, 1, 2), Move(2, 1, 2))
    assert list(timed_steps(0, [late, one, two])) == [
        Step(sends=(Move(1, 0, 1), Move(2, 0, 1))),
        Step(recvs=(Move(2, 1, 2),)),
    ]
    schedule = make_schedule("sliced", 4)
    steps = all_steps(schedule)
    met = messages(schedule, steps)
    times = dict(zip(met, rounds(schedule, steps, met), strict=True))
    assert {time for message, time in times.items() if message.source != message.target} == {(0, 0), (1, 0)}
    assert {time for message, time in times.items() if message.source == message.target} == {(0, 1), (0, 2)}
