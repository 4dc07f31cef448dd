"""A wire that rounds: owners round their own copies too, and only verify's word is taken for it."""

from functools import partial

import pytest
from mutants import KINDS, ORDER, all_steps, edit, judge, numbered, rejections, schedules, with_steps

from ringtrain.collectives import compose
from ringtrain.collectives.catalogue import FLAT, HALVES, SCHEDULES, check_name, make_schedule
from ringtrain.collectives.inspect.cost import Fabric, schedule_cost
from ringtrain.collectives.inspect.draw import step_text
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.collectives.topology import even, filled
from ringtrain.errors import ScheduleError, UsageError
from tests.says import says

SIZES = [*range(1, 18), 24, 32]
UNEVEN = [(4, 2, 3), (1, 5), (5, 1), (1, 1, 1), (2, 1, 4, 1), (7, 3, 2), (3, 3), (2, 2, 2), (5,), (8, 8, 8, 8)]
OWNED = [name for name in SCHEDULES if name != "recursive-doubling"]
proved = partial(verify_schedule, rounds=True)
OTHER_ORDER = says("added", "rounded", 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OWNED)
def test_proved_at_every_size_and_refused_without_the_owners_rounding(name, size):
    with_it, without = make_schedule(name, size, rounded=True), make_schedule(name, size)
    assert proved(with_it) == verify_schedule(with_it) == verify_schedule(without)  # neither a message nor a round more
    if size > 1:
        with pytest.raises(ScheduleError, match=OTHER_ORDER):
            proved(without)


@pytest.mark.parametrize("size", SIZES[1:])
def test_recursive_doubling_is_what_verify_says_no_to(size):
    with pytest.raises(ScheduleError, match=OTHER_ORDER):
        proved(make_schedule("recursive-doubling", size))


@pytest.mark.parametrize("counts", UNEVEN)
@pytest.mark.parametrize("outer", HALVES)
@pytest.mark.parametrize("inner", HALVES)
def test_any_pair_on_any_nodes(inner, outer, counts):
    proved(make_schedule(f"hierarchical:{inner}:{outer}", filled(counts), rounded=True))


@pytest.mark.parametrize("inner", HALVES)
def test_pairs_that_would_differ_are_seen(inner):
    for outer in FLAT:
        with pytest.raises(ScheduleError, match=OTHER_ORDER):
            proved(make_schedule(f"hierarchical:{inner}:{outer}", filled((2, 3))))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HALVES)
def test_halves(name, size):
    scatter, gather = (make_schedule(name, size, goal, rounded=True) for goal in ("reduce-scatter", "all-gather"))
    assert proved(gather) == verify_schedule(make_schedule(name, size, "all-gather"))
    assert all_steps(scatter) == all_steps(make_schedule(name, size, "reduce-scatter"))
    proved(scatter)
    if size > 1:
        with pytest.raises(ScheduleError, match=says("rounded", "owner")):
            proved(make_schedule(name, size, "all-gather"))
    assert all_steps(compose.rounded(make_schedule(name, size, "all-gather"))) == all_steps(gather)


@pytest.mark.parametrize("name", OWNED)
def test_without_it_nothing_has_changed(name):
    plain, with_it = (all_steps(make_schedule(name, filled((2, 3)), rounded=rounded)) for rounded in (False, True))
    for rank, (before, after) in enumerate(zip(plain, with_it, strict=True)):
        assert before == [step for step in after if not step.sends or step.sends != step.recvs], rank


def test_the_rounding_stands_between_the_halves():
    first, second = make_schedule("ring", 2, rounded=True).steps(1), make_schedule("star", 3, rounded=True).steps(0)
    assert [step.sends == step.recvs == (Move(1, 0, 1),) for step in first] == [False, True, False]
    assert [step.sends == step.recvs == (Move(0, 0, 1),) for step in second] == [False, False, True, False]
    assert [step_text(step, 0) for step in second][2] == "0:1 = 0:1"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", OWNED)
def test_mutants_are_rejected(name, kind):
    rejected, accepted = rejections(kind, schedules(name, rounded=True), seeds=12, rounds=True)
    assert rejected >= 10
    assert not accepted or kind in ORDER


@pytest.mark.parametrize("name", OWNED)
def test_every_single_rounding_that_is_left_out_is_seen_and_the_second_judge_sees_that_all_are(name):
    for original in schedules(name, rounded=True):
        assert not judge(make_schedule(name, original.size), 0, rounds=True)
        roundings = [at for *at, move in numbered(all_steps(original), "sends") if at[0] == move.peer]
        for rank, k, i in roundings:
            steps = all_steps(original)
            if steps[rank][k].sends[i].start != steps[rank][k].recvs[i].start:
                continue  # an addition within the rank
            edit(steps, "sends", rank, k, i, ())
            edit(steps, "recvs", rank, k, i, ())
            with pytest.raises(ScheduleError, match=OTHER_ORDER):
                proved(with_steps(original, steps))


def test_other_moves_within_a_rank_do_not_round():
    """Rank 0 sets the sum aside and takes it back: what it keeps is not what it sends."""

    def steps(rank):
        if rank:
            return [Step((Move(0, 0, 1),)), Step((), (Move(0, 0, 1),))]
        aside = [Step((Move(0, 0, 1),), (Move(0, 1, 2),)), Step((Move(0, 1, 2),), (Move(0, 0, 1),))]
        return [Step((), (Move(1, 0, 1, True),)), *aside, Step((Move(1, 0, 1),))]

    schedule = Schedule("aside", 2, 1, steps, lambda rank: 1)
    verify_schedule(schedule)
    with pytest.raises(ScheduleError, match=says(1, 0, "rank", "chunk") + OTHER_ORDER):
        proved(schedule)


@pytest.mark.parametrize(
    "step",
    [
        Step((Move(0, 0, 1),), (Move(0, 0, 1, True),)),  # added to itself
        Step((Move(0, 0, 1), Move(0, 1, 2)), (Move(0, 1, 2), Move(0, 0, 1))),  # swapped
        Step((Move(0, 0, 1), Move(0, 0, 1)), (Move(0, 0, 1), Move(0, 2, 3))),  # copied elsewhere besides
        Step((Move(0, 0, 2),), (Move(0, 0, 1),)),
    ],
)
def test_only_a_copy_onto_itself_is_no_hazard(step):
    with pytest.raises(ScheduleError, match=says(0, "hazard", "sent")):
        proved(Schedule("wrong", 1, 2, lambda rank: [step], lambda rank: 0))


@pytest.mark.parametrize("name", ["recursive-doubling", "hierarchical:ring:recursive-doubling"])
def test_what_has_no_owners_is_refused(name):
    wanted = says(f"{name!r}") + "ring, tree, "
    with pytest.raises(UsageError, match=wanted):
        make_schedule(name, 4, rounded=True)
    with pytest.raises(UsageError, match=wanted):
        check_name(name, rounded=True)
    check_name(name)


def test_half_the_bytes_take_half_the_time_and_are_added_at_full_length():
    links, adding = Fabric(0.0, 1.0, 0.0, 0.0, 0.0, 0.0), Fabric(0.0, 0.0, 0.0, 0.0, 3.0, 0.0)
    alone, schedule = even(4, 4), make_schedule("ring", 4)
    whole, half = (schedule_cost(schedule, alone, 400.0, links, wire=share) for share in (1.0, 0.5))
    assert (half.seconds, half.sent[0], half.interface[0]) == (whole.seconds / 2, whole.sent[0] / 2, 300.0)
    assert (
        schedule_cost(schedule, alone, 400.0, adding, wire=0.5).seconds
        == schedule_cost(schedule, alone, 400.0, adding).seconds
        == 900.0
    )
