"""Schedules with one thing wrong are rejected, whatever the schedule and whatever is wrong; and what is accepted, a
second judge, written another way, calls right."""

import pytest
from mutants import KINDS, ORDER, all_steps, rejections

from ringtrain.collectives.algorithms.pipelined import pipelined
from ringtrain.collectives.catalogue import HALVES, SCHEDULES, make_schedule
from ringtrain.collectives.topology import filled

WORLDS = [(2,), (3,), (5,), (8,)]
NODES = [(2, 2), (4, 2, 3), (1, 2)]


def made(name, goal="all-reduce"):
    if goal == "all-reduce" and name.startswith("hierarchical"):
        return [make_schedule(name, filled(counts)) for counts in NODES]
    return [make_schedule(name, filled(counts), goal) for counts in WORLDS]


def worlds_of(kind, schedules):
    """Those with more than one step on some rank, where it is steps that are exchanged."""
    if kind not in ORDER:
        return schedules
    return [schedule for schedule in schedules if any(len(rank_steps) > 1 for rank_steps in all_steps(schedule))]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", SCHEDULES)
def test_mutants_are_rejected(name, kind):
    rejected, accepted = rejections(kind, worlds_of(kind, made(name)), seeds=12)
    assert rejected >= 10
    assert not accepted or kind in ORDER


@pytest.mark.parametrize("goal", ["reduce-scatter", "all-gather"])
@pytest.mark.parametrize("name", HALVES)
def test_mutants_of_halves_are_rejected(name, goal):
    for kind in KINDS:
        rejected, accepted = rejections(kind, worlds_of(kind, made(name, goal)), seeds=4)
        assert rejected >= 4 or kind in ORDER
        assert not accepted or kind in ORDER


@pytest.mark.parametrize("name", ["tree", "sliced", "recursive-doubling", "hierarchical"])
def test_mutants_of_pipelined_schedules_are_rejected(name):
    for kind in KINDS:
        rejected, accepted = rejections(kind, [pipelined(make_schedule(name, filled((2, 3))), 3)], seeds=6)
        assert rejected >= 4 or kind in ORDER
        assert not accepted or kind in ORDER
