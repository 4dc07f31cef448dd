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


def cycle(size):
    return made(size, 1, *([take((rank - 1) % size), send((rank + 1) % size)] for rank in range(size)))


AT_ONCE = [both(add(1), add(2)), both(send(1), send(2))]
WRONG = {
    "a contribution added twice in two steps": (
        made(2, 1, [send(1), send(1), take(1)], [add(0), add(0), send(0)]),
        says(0, 0, 0, 2),
    ),
    "a missing contribution": (made(2, 1, [send(1)], [take(0)]), says(0, 0, 1, 0)),
    "a cycle of three": (cycle(3), says("deadlock", *(f"rank {rank} in step 0" for rank in range(3)))),
    "a long deadlock, which is abridged": (cycle(7), says(3, "and", "more")),
    "what a peer may still read": (
        made(2, 1, [both(send(1), add(1))], [both(send(0), add(0))]),
        says(0, 0, 0, 1, "hazard", "sent"),
    ),
    "two writers of one span": (
        made(3, 1, AT_ONCE, [send(0), take(0)], [send(0), take(0)]),
        says(0, 1, 2, "hazard", "received"),
    ),
    "scratch that is sent before it is filled": (made(2, 1, [send(1, 1, 2)], [take(0)]), says(0, 0, "1:2")),
    "an addition to empty scratch": (made(2, 1, [send(1)], [add(0, 1, 2)]), says(1, 0, 1, "scratch", "empty")),
    "more bytes than stated": (
        made(2, 1, [add(1), send(1), send(1)], [send(0), take(0), take(0)], wire=1),
        says(0, 2, 1, "chunks", "stated"),
    ),
    "a move to oneself in two steps": (made(1, 1, [send(0), take(0)]), says("deadlock", "rank 0 in step 0")),
    "a sum with oneself": (made(1, 1, [both(send(0), add(0))]), says(0, "hazard", "sent")),
    "an unknown peer": (made(2, 2, [send(2)], []), says(0, 0, 2, "peer", "ranks")),
    "an empty span": (made(2, 2, [send(1, 1, 1)], []), says("1:1")),
    "a span below 0": (made(2, 2, [send(1, -1, 1)], []), says("-1:1")),
    "a span beyond all chunks": (made(2, 2, [send(1, 1, 3)], []), says("1:3", 2)),
    "a send without a receive": (made(2, 2, [send(1)], []), says(0, 1, 1, 0, "sends", "receives")),
    "spans that differ": (made(2, 2, [send(1, 0, 1)], [take(0, 1, 2)]), says("0:1", 0, "1:2")),
    "lengths that differ": (made(2, 2, [send(1, 0, 2)], [take(0, 0, 1)]), says("0:2", 0, "0:1")),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what):
    rejected(*WRONG[what])


def test_sums_in_different_orders_are_rejected():
    """Everybody sends to everybody through scratch and adds for itself: right sums, rounded differently."""
    steps = []
    for rank in range(3):
        a, b = (rank + 1) % 3, (rank + 2) % 3
        swap = Step((Move(a, 0, 1), Move(b, 0, 1)), (Move(b, 1, 2), Move(a, 2, 3)))
        additions = [Step((Move(rank, k, k + 1),), (Move(rank, 0, 1, add=True),)) for k in (1, 2)]
        steps.append([swap, *additions])
    rejected(made(3, 1, *steps), says(1, 0, "added", 0))


def test_scratch_frees_of_hazards_and_a_move_to_oneself_costs_no_message_and_no_round():
    """Two ranks swap raw contributions, each adds for itself."""
    swaps = [Step((Move(1 - rank, 0, 1),), (Move(1 - rank, 1, 2),)) for rank in range(2)]
    additions = [Step((Move(rank, 1, 2),), (Move(rank, 0, 1, True),)) for rank in range(2)]
    proof = verify_schedule(made(2, 1, *zip(swaps, additions, strict=True), wire=1))
    assert proof.sent == proof.messages == (1, 1) and proof.rounds == 1


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


def test_a_schedule_says_what_it_is():
    assert repr(make_schedule("ring", 3)) == "ring(ranks=3, chunks=3)"
