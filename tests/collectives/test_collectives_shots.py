"""The one-shot plan: two slots in turn, proved by a rule of its own."""

from dataclasses import replace

import pytest

from ringtrain.collectives.shots import ADD, PUT, SAY, WAIT, Act, Shots, one_shot, verify_shots
from ringtrain.errors import ScheduleError


@pytest.mark.parametrize("size", [*range(1, 10), 16])
def test_it_is_proved(size):
    shots = one_shot(size)
    verify_shots(shots)
    for rank, phases in enumerate(shots.phases):
        for slot, acts in enumerate(phases):
            assert acts[:3] == (Act(PUT, rank, slot), Act(SAY), Act(WAIT))
            assert acts[3:] == tuple(Act(ADD, owner, slot) for owner in range(size))


def _with(shots, rank, phase, acts):
    own = shots.phases[rank]
    return _of(shots, rank, (*own[:phase], tuple(acts), *own[phase + 1 :]))


def _of(shots, rank, phases):
    return replace(shots, phases=(*shots.phases[:rank], phases, *shots.phases[rank + 1 :]))


def mutants(shots: Shots):
    """Every plan that differs in one act on one rank: left out, done twice, in the other slot, of another's mail, or
    before the one before it."""
    for rank, phases in enumerate(shots.phases):
        for phase, acts in enumerate(phases):
            for i, act in enumerate(acts):
                changed = {"dropped": (), "doubled": (act, act)}
                if act.kind in (PUT, ADD):
                    changed["slot"] = (replace(act, slot=1 - act.slot),)
                    changed["owner"] = (replace(act, owner=(act.owner + 1) % shots.size),)
                for kind, instead in changed.items():
                    yield f"{kind} {act.kind}", _with(shots, rank, phase, (*acts[:i], *instead, *acts[i + 1 :]))
                if i:
                    turned = (*acts[: i - 1], act, acts[i - 1], *acts[i + 1 :])
                    yield f"{acts[i - 1].kind} after {act.kind}", _with(shots, rank, phase, turned)


HARMLESS = {"doubled put", "doubled wait"}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_mutants_are_rejected(size):
    """But for those that do the same: what is put twice at once, a second wait for what has come, the first two
    contributions turned round, since a + b is b + a, and the own contribution added before the wait."""
    seen = set()
    for kind, mutant in mutants(one_shot(size)):
        if kind in HARMLESS or _first_two_turned(mutant, size) or _own_before_the_wait(mutant, size):
            verify_shots(mutant)
            continue
        seen.add(kind)
        with pytest.raises(ScheduleError):
            verify_shots(mutant)
    assert seen >= {"dropped put", "dropped say", "dropped wait", "dropped add", "doubled add", "slot put", "slot add"}
    assert seen >= {"owner put", "owner add", "say after wait", "wait after add", "put after say"}


def _first_two_turned(mutant, size):
    right = one_shot(size)
    return any(
        acts != own and acts == (*own[:3], own[4], own[3], *own[5:])
        for rank in range(size)
        for acts, own in zip(mutant.phases[rank], right.phases[rank], strict=True)
    )


def _own_before_the_wait(mutant, size):
    right = one_shot(size)
    changed = [
        (rank, acts)
        for rank in range(size)
        for acts, own in zip(mutant.phases[rank], right.phases[rank], strict=True)
        if acts != own
    ]
    ((rank, acts),) = changed
    return [act.kind for act in acts[2:4]] == [ADD, WAIT] and acts[2].owner == rank


def test_one_slot_is_not_enough():
    """The next contribution is put while a slow rank still adds the last one."""
    two = one_shot(3)
    one = replace(two, phases=tuple(phases[:1] for phases in two.phases))
    with pytest.raises(ScheduleError, match=r"hazard: rank 0 puts into slot 0 of rank 0 in round 1 while rank 1 adds"):
        verify_shots(one)


def test_what_is_wrong_is_named():
    shots = one_shot(2)
    acts = shots.phases[1][0]
    cases = [
        (_with(shots, 1, 0, acts[:-1]), r"round 0, rank 1 ends with rank 1's contribution 0 times"),
        (_with(shots, 1, 0, (*acts, acts[-1])), r"round 0, rank 1 ends with rank 1's contribution 2 times"),
        (_with(shots, 1, 0, (acts[0], *acts[2:])), r"rank 1 says 3 times that it has come, in 6 rounds, and rank 0 6"),
        (_with(shots, 1, 0, acts[1:]), r"rank 0 adds from slot 0 of rank 1 in round 0, and nobody has put anything"),
        (_with(shots, 1, 1, shots.phases[1][1][1:]), r"adds from slot 1 of rank 1 in round 1, and nobody has put"),
    ]
    for mutant, told in cases:
        with pytest.raises(ScheduleError, match=told):
            verify_shots(mutant)
    first = Shots("stale", 1, (((Act(PUT, 0, 0), Act(ADD, 0, 0)), (Act(ADD, 0, 0),)),))
    with pytest.raises(ScheduleError, match=r"round 1, which holds rank 0's contribution of round 0"):
        verify_shots(first)


def test_two_orders_of_addition_are_seen():
    shots = one_shot(3)
    acts = shots.phases[1][0]
    with pytest.raises(ScheduleError, match=r"round 0, rank 1 adds in another order than rank 0"):
        verify_shots(_with(shots, 1, 0, (*acts[:4], acts[5], acts[4])))
