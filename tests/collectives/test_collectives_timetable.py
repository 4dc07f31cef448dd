"""Messages with times as steps, and the times of a schedule's messages."""

import pytest

from ringtrain.collectives.algorithms.timetable import TimedMessage, rounds, timed_steps
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.matching import all_steps, messages
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.errors import ScheduleError
from tests.says import says


def test_a_schedule_that_deadlocks_has_no_times():
    steps = [[Step(recvs=(Move(1 - rank, 0, 1),)), Step(sends=(Move(1 - rank, 0, 1),))] for rank in range(2)]
    stuck = Schedule("stuck", 2, 1, lambda rank: steps[rank], lambda rank: 1)
    with pytest.raises(ScheduleError, match=says(f"{stuck!r}", 2)):
        rounds(stuck, all_steps(stuck), messages(stuck, all_steps(stuck)))


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
