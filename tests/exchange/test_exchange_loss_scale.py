"""A scaled loss: how the factor moves, what is left out, and who cannot."""

import numpy as np
import pytest
from test_exchange_strategies import bound

from ringtrain.exchange.update.loss_scale import GROW_AFTER, LARGEST, START, LossScale, unscale
from ringtrain.ops.reference import ReferenceOps
from ringtrain.transport.threads.loopback import LoopbackWorld
from tests.fakes.strategies import Sharded


def test_a_dynamic_factor_halves_when_it_was_too_large_and_doubles_after_long():
    scale = LossScale()
    assert scale.factor == START == 65536
    for _ in range(3):
        scale.judge(finite=False)
    assert (scale.factor, scale.skipped) == (8192, 3)
    for _ in range(GROW_AFTER - 1):
        scale.judge(finite=True)
    assert scale.factor == 8192
    scale.judge(finite=True)
    assert (scale.factor, scale.good) == (16384, 0)
    for _ in range(GROW_AFTER - 1):
        scale.judge(finite=True)
    scale.judge(finite=False)  # the count begins anew
    for _ in range(GROW_AFTER - 1):
        scale.judge(finite=True)
    assert scale.factor == 8192


def test_it_stays_within_bounds():
    scale = LossScale()
    for _ in range(40):
        scale.judge(finite=False)
    assert (scale.factor, scale.skipped) == (1, 40)
    for _ in range(40 * GROW_AFTER):
        scale.judge(finite=True)
    assert scale.factor == LARGEST


def test_a_fixed_factor_stays_and_counts():
    scale = LossScale(128.0)
    for finite in (False, *[True] * GROW_AFTER, False):
        scale.judge(finite)
    assert (scale.factor, scale.skipped, scale.good) == (128, 2, 0)


def test_the_state_goes_on_where_it_was():
    before, after, fixed = LossScale(), LossScale(), LossScale(8.0)
    for finite in (False, False, True):
        before.judge(finite)
    for other in (after, fixed):
        other.restore({"step": 7, **before.state()})
    assert (after.factor, after.good, after.skipped) == (before.factor, 1, 2)
    assert (fixed.factor, fixed.skipped) == (8, 2)
    fresh = LossScale()
    fresh.restore({"step": 7})  # of a run of another precision
    assert fresh.state() == LossScale().state()


def test_gradients_are_divided_where_they_are_trained_and_finite():
    ops, grads = ReferenceOps("float32"), np.full(6, 65536.0, np.float32)
    assert unscale(ops, grads, [(0, 2), (4, 6)], LossScale())
    assert grads.tolist() == [1, 1, 65536, 65536, 1, 1]
    grads[3] = np.inf  # a statistic: none of its business
    assert unscale(ops, grads, [(0, 2), (4, 6)], LossScale(1.0))
    grads[5] = np.nan
    scale = LossScale()
    assert not unscale(ops, grads, [(0, 2), (4, 6)], scale)
    assert (grads[0], scale.skipped, scale.factor) == (1, 1, START / 2)


def test_what_one_rank_has_not_decides_for_all():
    scale = LossScale()
    assert not unscale(ReferenceOps("float32"), np.ones(4, np.float32), [(0, 4)], scale, total=lambda own: own + 1)
    assert scale.skipped == 1


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "rmsprop"])
def test_an_update_that_is_left_out_by_ranks_that_share_the_work_does_not_count(optimizer):
    """Adam's corrections depend on how many there were."""

    def body(t, factors):
        exchange, arena = bound(Sharded, t, optimizer, scale=LossScale(1.0))
        for iteration, factor in enumerate(factors):
            exchange.before(iteration, 1, 2)
            for span in reversed(arena.spans):
                arena.grad(span)[...] = factor * (1 + t.rank)
                exchange.grad_ready(span)
            exchange.finish(iteration, 0.125)
        return arena.weights.tobytes(), exchange.owned_state.state()["step"]

    with_it, without = (LoopbackWorld(2).run(lambda t, f=f: body(t, f)) for f in ((1.0, np.inf, 2.0), (1.0, 2.0)))
    assert with_it == without and {step for _, step in with_it} == {2}
