"""Schedules with one thing wrong are rejected, whatever the schedule and whatever is wrong; and what is accepted, a
second judge, written another way, calls right."""

import pytest
from mutants import KINDS, ORDER, all_steps, rejections, schedules

from ringtrain.collectives.catalogue import HALVES, SCHEDULES


def worlds_of(kind, originals):
    """Those with more than one step on some rank, where it is steps that are exchanged."""
    if kind not in ORDER:
        return originals
    return [schedule for schedule in originals if any(len(rank_steps) > 1 for rank_steps in all_steps(schedule))]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", SCHEDULES)
def test_mutants_are_rejected(name, kind):
    rejected, accepted = rejections(kind, worlds_of(kind, schedules(name)), seeds=12)
    assert rejected >= 10
    assert not accepted or kind in ORDER


@pytest.mark.parametrize("goal", ["reduce-scatter", "all-gather"])
@pytest.mark.parametrize("name", HALVES)
def test_mutants_of_halves_are_rejected(name, goal):
    originals = schedules(name, goal)
    for kind in KINDS:
        rejected, accepted = rejections(kind, worlds_of(kind, originals), seeds=4)
        assert rejected >= 4 or kind in ORDER
        assert not accepted or kind in ORDER
