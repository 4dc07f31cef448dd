import threading

import pytest

from ringtrain.train.run.driver import WorkQueue
from ringtrain.train.step.loss_sum import IterationLoss
from tests.loopback.world import LoopbackWorld

FIRST, STOP = 5, 12


def outcome(iteration, part):
    return IterationLoss(iteration, 10, 0.5 + part, part, 3, False)


def never():
    return False


def hand_out(size, parts, stop_requested=lambda rank: never, slow=None):
    """All ranks take what there is; rank ``slow`` takes one part, and the next when the others have no more. Returns
    [(units of each rank, what it finds finished)]."""
    done = threading.Barrier(size)

    def body(t):
        handout, units = WorkQueue(t, parts, 20), []
        handout.open(FIRST, STOP)
        for unit in handout.tickets(stop_requested(t.rank)):
            units.append(unit)
            if t.rank == slow and len(units) == 1:
                done.wait(60)
            handout.report(outcome(*unit))
        if t.rank != slow or not units:
            done.wait(60)
        t.barrier()
        return units, handout.finished(lambda iteration: 100 + iteration)

    return LoopbackWorld(size).run(body)


@pytest.mark.parametrize(("size", "parts"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_every_part_is_handed_out_once_and_told_of_in_order(size, parts):
    results = hand_out(size, parts)
    units = sorted(unit for taken, _ in results for unit in taken)
    assert units == [(iteration, part) for iteration in range(FIRST, STOP) for part in range(parts)]
    for _, outcomes in results:
        assert [each.iteration for each in outcomes] == list(range(FIRST, STOP))
        total = sum(range(parts))
        assert {(each.loss_sum, each.correct, each.valid) for each in outcomes} == {
            (0.5 * parts + total, total, 3 * parts)
        }
        assert [each.examples for each in outcomes] == [100 + iteration for iteration in range(FIRST, STOP)]


def test_a_slow_rank_has_fewer_parts():
    results = hand_out(2, 2, slow=1)
    counts = [len(units) for units, _ in results]
    assert sum(counts) == 2 * (STOP - FIRST) and counts[1] <= 1


def test_who_is_told_to_stop_finishes_the_iteration_that_was_begun():
    """Rank 1 is told when it has had three parts. No iteration is left half done, and none is left out."""

    def told(rank):
        asked = []

        def check():
            asked.append(None)
            return rank == 1 and len(asked) > 3

        return check

    for _ in range(20):
        results = hand_out(3, 3, told)
        units = sorted(unit for taken, _ in results for unit in taken)
        last = units[-1][0]
        assert units == [(iteration, part) for iteration in range(FIRST, last + 1) for part in range(3)]
        assert all(len(outcomes) == last + 1 - FIRST for _, outcomes in results)


def test_told_of_once_and_open_again():
    def body(t):
        handout = WorkQueue(t, 1, 20)
        handout.open(0, 2)
        handout.report(outcome(0, 0))
        seen = [len(handout.finished(lambda _: 1)), len(handout.finished(lambda _: 1))]
        handout.open(2, 4)
        return seen, handout.finished(lambda _: 1), list(handout.tickets(never))

    assert LoopbackWorld(1).run(body) == [([1, 0], [], [(2, 0), (3, 0)])]
