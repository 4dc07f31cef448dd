"""What is gossip's own: pairs, how far apart they may be, and the mean of all at the end."""

import numpy as np
from small_runs import BATCH_NORM_NET, DROPOUT_NET, everywhere, results, run_of


def gossip(size, **flags):
    return results(size, DROPOUT_NET, dtype="float64", sync="gossip", **flags)


def test_how_far_ranks_may_be_apart_changes_no_bit():
    for size in (2, 3):
        whole, window = gossip(size, iterations=10), gossip(size, iterations=10, gossip_max_lag=0)
        assert whole[0][1].tobytes() == window[0][1].tobytes()


def test_two_ranks_learn():
    """Down to a share of the first loss; that of serial training is 0.1."""
    losses, *_ = results(2, BATCH_NORM_NET, 80, dtype="float64", sync="gossip", lr=0.02, augment=False)[0]
    assert np.mean(losses[-10:]) < 0.2 * losses[0]


def test_one_rank_is_serial_and_two_are_not():
    serial = results(1, DROPOUT_NET, 20, dtype="float64")[0][1]
    np.testing.assert_array_equal(gossip(1, iterations=20)[0][1], serial)
    assert np.abs(gossip(2, iterations=20)[0][1] - serial).max() > 1e-4


def test_ranks_differ_until_somebody_looks():
    def body(t):
        run, ops = run_of(t, DROPOUT_NET, iterations=3, sync="gossip", dtype="float64")
        with run.batches(t, 0, 3) as batches:
            for batch in batches:
                run.worker.iterate(batch)
        before = ops.to_host(run.arena.weights)
        run.exchange.synchronize()
        return before, ops.to_host(run.arena.weights)

    found = everywhere(3, body)
    assert len({before.tobytes() for before, _ in found}) == 3
    assert len({after.tobytes() for _, after in found}) == 1
    np.testing.assert_allclose(found[0][1], np.mean([before for before, _ in found], axis=0), rtol=1e-12, atol=1e-15)
