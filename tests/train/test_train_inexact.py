"""Promises of averaging, delayed and gossip alone: no iteration of theirs is one of serial training."""

import numpy as np
import pytest
from small_runs import DROPOUT_NET, ITERATIONS, LAYERWISE, NETS, apart, everywhere, iterate, results, run_of


def averaging(size, iterations=ITERATIONS, **flags):
    return results(size, DROPOUT_NET, iterations, dtype="float64", sync="averaging", **flags)


def serial(iterations=ITERATIONS, **flags):
    return results(1, DROPOUT_NET, iterations, dtype="float64", **flags)[0][1]


def test_layerwise_optimizers_are_each_ranks_own():
    """Serial on one rank, and on several one state for all."""
    flags = {"average_every": 3, **LAYERWISE["lars"]}
    assert apart(averaging(1, **flags), serial(**LAYERWISE["lars"])) <= 1e-12
    whole = averaging(3, iterations=20, settle_at=(10,), **flags)
    begun = averaging(3, iterations=10, **flags)[0][2]
    ranks = averaging(3, start=10, checkpoint=begun, iterations=20, **flags)
    assert {w.tobytes() for _, w, _ in ranks} == {w.tobytes() for _, w, _ in whole}
    assert apart(whole, serial(iterations=20, **LAYERWISE["lars"])) > 1e-4


def test_post_local_is_all_reduce_up_to_then():
    flags = {"average_every": 4, "average_from": 12}
    ranks = averaging(3, **flags)
    assert apart(averaging(3, iterations=12, **flags), serial(iterations=12)) <= 1e-12
    begun = results(2, DROPOUT_NET, 12, dtype="float64")[0][2]
    assert apart(averaging(3, start=12, checkpoint=begun, **flags), ranks[0][1]) <= 1e-12
    assert apart(ranks, serial()) > 1e-3


def test_delayed_is_not_serial_and_learns_as_much():
    flags = {"lr": 0.02, "augment": False}
    serial = results(1, NETS["ghost"], 60, dtype="float64", **flags)[0]
    losses, weights, _ = results(2, NETS["ghost"], 60, dtype="float64", sync="delayed", **flags)[0]
    assert np.abs(weights - serial[1]).max() > 1e-3
    assert losses[0] == pytest.approx(serial[0][0]) and losses[1] > serial[0][1]  # its first update comes later
    assert np.mean(losses[-10:]) < min(1.2 * np.mean(serial[0][-10:]), 0.2 * losses[0])


@pytest.mark.parametrize("size", [2, 3])
def test_how_far_gossiping_ranks_may_be_apart_changes_no_bit(size):
    flags = {"dtype": "float64", "sync": "gossip"}
    whole, window = (results(size, DROPOUT_NET, 10, **flags, **more) for more in ({}, {"gossip_max_lag": 0}))
    assert whole[0][1].tobytes() == window[0][1].tobytes()


def test_gossiping_ranks_differ_until_a_rank_looks():
    def body(t):
        run, ops = run_of(t, DROPOUT_NET, iterations=3, sync="gossip", dtype="float64")
        iterate(run, t, 0, 3)
        before = ops.to_host(run.arena.weights)
        run.exchange.synchronize()
        return before, ops.to_host(run.arena.weights)

    ranks = everywhere(3, body)
    assert len({before.tobytes() for before, _ in ranks}) == 3
    assert len({after.tobytes() for _, after in ranks}) == 1
    np.testing.assert_allclose(ranks[0][1], np.mean([before for before, _ in ranks], axis=0), rtol=1e-12, atol=1e-15)
