"""A scaled loss: how the factor moves, what is left out, and who cannot."""

import numpy as np
import pytest
from exchange_support import bound, iterate

from ringtrain.exchange.update.loss_scale import START, LossScale
from ringtrain.ops.reference import ReferenceOps
from ringtrain.ops.update import (
    APPLIED,
    DIVERGED,
    FACTOR,
    GOOD,
    GROW_AFTER,
    LARGEST_FACTOR,
    MULTIPLIER,
    SKIPPED,
    UPDATE_NUMBERS,
    UPDATES,
)
from tests.fakes.strategies import Sharded
from tests.loopback.world import LoopbackWorld

OPS = ReferenceOps("float32")


def judge(scale, *finite):
    """Begin an update for each gradient, which is finite or not."""
    numbers = OPS.zeros((UPDATE_NUMBERS,), "float64")
    for each in finite:
        OPS.begin_update(numbers, np.array([1.0 if each else np.inf]), None, scale.numbers, scale.dynamic)
    return numbers


def test_a_dynamic_factor_halves_when_it_was_too_large_and_doubles_after_long():
    scale = LossScale(OPS)
    assert scale.numbers[FACTOR] == scale.factor == START == 65536
    almost = [True] * (GROW_AFTER - 1)
    for finite, numbers in (
        ([False] * 3, [8192, 0, 3]),
        (almost, [8192, GROW_AFTER - 1, 3]),
        ([True], [16384, 0, 3]),
        ([*almost, False, *almost], [8192, GROW_AFTER - 1, 4]),  # the count begins anew
        ([False] * 36, [1, 0, 40]),
    ):
        judge(scale, *finite)
        assert scale.numbers.tolist() == numbers
    scale.numbers[[FACTOR, GOOD]] = LARGEST_FACTOR, GROW_AFTER - 1
    judge(scale, True)
    assert scale.numbers.tolist() == [LARGEST_FACTOR, 0, 40]
    scale = LossScale(OPS, 128.0)  # a fixed one stays, and counts
    judge(scale, False, *[True] * GROW_AFTER, False)
    assert scale.numbers.tolist() == [128, 0, 2]


def test_the_state_goes_on_where_it_was():
    before, after, fixed = LossScale(OPS), LossScale(OPS), LossScale(OPS, 8.0)
    judge(before, False, False, True)
    for other in (after, fixed):
        other.restore({"step": 7, **before.state()})
    assert after.numbers.tolist() == before.numbers.tolist() == [START / 4, 1, 2]
    assert fixed.numbers.tolist() == [8, 1, 2] and after.skipped == 2
    fresh = LossScale(OPS)
    fresh.restore({"step": 7})  # of a run of another precision
    assert fresh.state() == LossScale(OPS).state()


def test_what_was_fetched_is_seen_when_it_is_looked_at():
    scale = LossScale(OPS)
    judge(scale, False)
    scale.fetch()
    assert (scale.factor, scale.skipped) == (START, 0)
    scale.look()
    assert (scale.factor, scale.skipped) == (START / 2, 1)


def begun(squares, limit=None, factor=None, totals=None):
    """Return the numbers of an update of these squares."""
    numbers, scale = OPS.zeros((UPDATE_NUMBERS,), "float64"), None
    if factor is not None:
        scale = OPS.zeros((3,), "float64")
        scale[FACTOR] = factor
    OPS.begin_update(numbers, np.array([squares]), limit, scale, False, totals)
    return numbers


def test_gradients_are_divided_by_the_factor_and_clipped_by_their_own_norm():
    assert begun(25.0, factor=4.0)[MULTIPLIER] == 1 / 4
    assert begun(25.0, limit=5.0)[MULTIPLIER] == 1
    assert begun(25.0, limit=2.5)[MULTIPLIER] == 1 / 2
    assert begun(25.0 * 16, limit=5.0, factor=4.0)[MULTIPLIER] == 1 / 4
    assert begun(25.0 * 16, limit=1.25, factor=4.0)[MULTIPLIER] == 1 / 16


def test_an_overflow_leaves_the_update_out_where_the_loss_is_scaled_and_a_loss_that_is_not_finite_everywhere():
    for bad in (np.inf, np.nan):
        assert begun(bad, factor=4.0)[[UPDATES, APPLIED]].tolist() == [0, 0]
        assert begun(bad)[[UPDATES, APPLIED]].tolist() == [1, 1]
    numbers = begun(1.0, totals=np.array([np.nan, 0, 1]))
    assert numbers[[UPDATES, APPLIED, DIVERGED]].tolist() == [0, 0, 1]
    OPS.begin_update(numbers, totals_3=np.array([1.0, 0, 1]))
    assert numbers[[UPDATES, APPLIED]].tolist() == [0, 0]


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "rmsprop"])
def test_an_update_that_is_left_out_by_ranks_that_share_the_work_does_not_count(optimizer):
    """Adam's corrections depend on how many there were."""

    def body(t, factors):
        scale = LossScale(OPS, 1.0)
        exchange, arena = bound(Sharded, t, optimizer, scale=scale)
        for iteration, factor in enumerate(factors):
            iterate(exchange, arena, t.rank, iteration, 1, 2, grads=np.full(arena.count, factor * (1 + t.rank)))
        return arena.weights.tobytes(), exchange.owned_state.state()["step"], scale.numbers[SKIPPED]

    with_it, without = (LoopbackWorld(2).run(lambda t, f=f: body(t, f)) for f in ((1.0, np.inf, 2.0), (1.0, 2.0)))
    assert [each[:2] for each in with_it] == [each[:2] for each in without]
    assert {step for _, step, _ in with_it} == {2} and {skipped for *_, skipped in with_it} == {1}
