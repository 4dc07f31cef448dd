"""Halves of all-reduces as collectives of their own: proofs of broadcasts from any root, and of halves by rank."""

import pytest

from ringtrain.collectives.catalogue import HALVES, make_broadcast, make_by_rank
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER
from ringtrain.errors import UsageError
from tests.says import says

BY_RANK = ("ring", "circulant", "sliced")


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("size", range(1, 10))
def test_every_half_broadcasts_from_any_root(name, size):
    for root in range(size):
        schedule = make_broadcast(name, size, root)
        assert {schedule.owner(chunk) for chunk in range(schedule.chunks)} == {root}
        assert schedule.goal == ALL_GATHER
        verify_schedule(schedule)


@pytest.mark.parametrize("name", [*BY_RANK, "butterfly"])
@pytest.mark.parametrize("goal", [REDUCE_SCATTER, ALL_GATHER])
def test_halves_by_rank_end_with_a_row_on_each(name, goal):
    for size in (1, 2, 4, 8) if name == "butterfly" else range(1, 10):
        schedule = make_by_rank(name, size, goal)
        assert [schedule.owner(chunk) for chunk in range(schedule.chunks)] == list(range(size))
        assert schedule.goal == goal
        verify_schedule(schedule)


@pytest.mark.parametrize(("name", "size"), [("tree", 4), ("double-tree", 4), ("star", 3), ("butterfly", 3)])
def test_owners_of_several_rows_are_refused(name, size):
    with pytest.raises(UsageError, match=says(name, ALL_GATHER, size)):
        make_by_rank(name, size, ALL_GATHER)
