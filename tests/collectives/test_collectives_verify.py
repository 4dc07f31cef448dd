"""verify accepts what reaches its goal, and nothing else: schedules made to deceive it. Mutants are beside it."""

from dataclasses import replace

import pytest

from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.errors import ScheduleError
from tests.says import says


def made(size, chunks, *steps, wire=99):
    return Schedule("made", size, chunks, lambda rank: steps[rank], lambda rank: wire)


def send(peer, start=0, stop=1):
    return Step(sends=(Move(peer, start, stop),))


def take(peer, start=0, stop=1):
    return Step(recvs=(Move(peer, start, stop),))


def add(peer, start=0, stop=1):
    return Step(recvs=(Move(peer, start, stop, add=True),))


def both(*steps):
    return Step(tuple(m for s in steps for m in s.sends), tuple(m for s in steps for m in s.recvs))


def rejected(schedule, message):
    with pytest.raises(ScheduleError, match=message):
        verify_schedule(schedule)


def test_a_contribution_added_twice_in_two_steps_is_seen():
    doubled = made(2, 1, [send(1), send(1), take(1)], [add(0), add(0), send(0)])
    rejected(doubled, says(0, 0, 0, 2))


def test_a_missing_contribution_is_named():
    rejected(made(2, 1, [send(1)], [take(0)]), says(0, 0, 1, 0))


def test_sends_before_receives_deadlock_when_sends_are_synchronous():
    """Each sends one half to be added by the other, then swaps the sums: right, if only somebody listened first."""
    low, high = (0, 1), (1, 2)
    head_on = [
        [send(1, *high), add(1, *low), send(1, *low), take(1, *high)],
        [send(0, *low), add(0, *high), send(0, *high), take(0, *low)],
    ]
    listening = [[both(a, b), both(c, d)] for a, b, c, d in head_on]
    verify_schedule(made(2, 2, *listening))
    head_on = made(2, 2, *head_on)
    rejected(head_on, says("deadlock", "rank 0 in step 0", "rank 1 in step 0"))


def test_a_cycle_of_three_deadlocks():
    cycle = [[take((rank - 1) % 3), send((rank + 1) % 3)] for rank in range(3)]
    rejected(made(3, 1, *cycle), says("deadlock", *(f"rank {rank} in step 0" for rank in range(3))))


def test_long_deadlocks_are_abridged():
    cycle = [[take((rank - 1) % 7), send((rank + 1) % 7)] for rank in range(7)]
    rejected(made(7, 1, *cycle), says(3, "and", "more"))


def test_writing_what_a_peer_may_still_read_is_a_hazard():
    crossed = made(2, 1, [both(send(1), add(1))], [both(send(0), add(0))])
    rejected(crossed, says(0, 0, 0, 1, "hazard", "sent"))


def test_two_writers_of_one_span_are_a_hazard():
    at_once = made(3, 1, [both(add(1), add(2)), both(send(1), send(2))], [send(0), take(0)], [send(0), take(0)])
    rejected(at_once, says(0, 1, 2, "hazard", "received"))


def test_sums_in_different_orders_are_rejected():
    """Everybody sends to everybody through scratch and adds for itself: right sums, rounded differently."""
    steps = []
    for rank in range(3):
        a, b = (rank + 1) % 3, (rank + 2) % 3
        swap = Step((Move(a, 0, 1), Move(b, 0, 1)), (Move(b, 1, 2), Move(a, 2, 3)))
        additions = [Step((Move(rank, k, k + 1),), (Move(rank, 0, 1, add=True),)) for k in (1, 2)]
        steps.append([swap, *additions])
    rejected(made(3, 1, *steps), says(1, 0, "added", 0))


def through_scratch():
    """Two ranks swap raw contributions, each adds for itself."""
    return made(
        2, 1,
        *([Step((Move(1 - rank, 0, 1),), (Move(1 - rank, 1, 2),)), Step((Move(rank, 1, 2),), (Move(rank, 0, 1, True),))]
          for rank in range(2)),
        wire=1,
    )  # fmt: skip


def test_scratch_frees_of_hazards():
    assert verify_schedule(through_scratch()).sent == (1, 1)


def test_a_move_to_oneself_costs_no_message_and_no_round():
    proof = verify_schedule(through_scratch())
    assert proof.messages == (1, 1) and proof.rounds == 1


def test_scratch_must_have_been_filled():
    rejected(made(2, 1, [send(1, 1, 2)], [take(0)]), says(0, 0, "1:2"))
    rejected(made(2, 1, [send(1)], [add(0, 1, 2)]), says(1, 0, 1, "scratch", "empty"))


def test_more_bytes_than_stated_are_rejected():
    wasteful = made(2, 1, [add(1), send(1), send(1)], [send(0), take(0), take(0)], wire=1)
    rejected(wasteful, says(0, 2, 1, "chunks", "stated"))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (([send(2)], []), says(0, 0, 2, "peer", "ranks")),
        (([send(1, 1, 1)], []), says("1:1")),
        (([send(1, -1, 1)], []), says("-1:1")),
        (([send(1, 1, 3)], []), says("1:3", 2)),
        (([send(1)], []), says(0, 1, 1, 0, "sends", "receives")),
        (([send(1, 0, 1)], [take(0, 1, 2)]), says("0:1", 0, "1:2")),
        (([send(1, 0, 2)], [take(0, 0, 1)]), says("0:2", 0, "0:1")),
    ],
)
def test_impossible_moves_are_named(steps, message):
    rejected(made(2, 2, *steps), message)


def half(goal, *steps, size=2, chunks=1):
    return replace(made(size, chunks, *steps), goal=goal, owner=lambda chunk: chunk % size)


def test_a_reduce_scatter_needs_the_sum_on_its_owner_alone():
    verify_schedule(half("reduce-scatter", [add(1)], [send(0)]))
    rejected(half("reduce-scatter", [send(1)], [add(0)]), says(0, 0, 1, 0))
    doubled = half("reduce-scatter", [add(1), add(1)], [send(0), send(0)])
    rejected(doubled, says(0, 0, 1, 2))


def test_an_all_gather_needs_the_owners_value_and_nothing_else():
    verify_schedule(half("all-gather", [send(1)], [take(0)]))
    rejected(half("all-gather", [send(1)], [add(0)]), says(1, 0, "rank 0's + rank 1's"))
    rejected(half("all-gather", [take(1)], [send(0)]), says(0, 0, "rank 1's"))


def test_a_move_to_oneself_has_both_ends_in_one_step():
    rejected(made(1, 1, [send(0), take(0)]), says("deadlock", "rank 0 in step 0"))
    rejected(made(1, 1, [both(send(0), add(0))]), says(0, "hazard", "sent"))


def test_a_schedule_says_what_it_is():
    assert repr(make_schedule("ring", 3)) == "ring(ranks=3, chunks=3)"
