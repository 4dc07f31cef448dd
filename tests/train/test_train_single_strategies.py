"""Promises of single strategies: averaging, delayed and gossip, of which no iteration is one of serial training;
compression, exact where nothing is left out; a master."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from small_runs import (
    BATCH_NORM_NET,
    DROPOUT_NET,
    ITERATIONS,
    LAYERWISE,
    NETS,
    apart,
    everywhere,
    iterate,
    results,
    run_of,
    trained,
)


def averaging(size, iterations=ITERATIONS, **flags):
    return results(size, DROPOUT_NET, iterations, dtype="float64", sync="averaging", **flags)


def serial(iterations=ITERATIONS, **flags):
    return results(1, DROPOUT_NET, iterations, dtype="float64", **flags)[0]


def test_layerwise_optimizers_are_each_ranks_own():
    """Serial on one rank, and on several one state for all."""
    flags = {"average_every": 3, **LAYERWISE["lars"]}
    assert apart(averaging(1, **flags), serial(**LAYERWISE["lars"])[1]) <= 1e-12
    whole = averaging(3, iterations=20, settle_at=(10,), **flags)
    begun = averaging(3, iterations=10, **flags)[0][2]
    ranks = averaging(3, start=10, checkpoint=begun, iterations=20, **flags)
    assert {w.tobytes() for _, w, _ in ranks} == {w.tobytes() for _, w, _ in whole}
    assert apart(whole, serial(iterations=20, **LAYERWISE["lars"])[1]) > 1e-4


def test_post_local_is_all_reduce_up_to_then():
    flags = {"average_every": 4, "average_from": 12}
    ranks = averaging(3, **flags)
    assert apart(averaging(3, iterations=12, **flags), serial(iterations=12)[1]) <= 1e-12
    begun = results(2, DROPOUT_NET, 12, dtype="float64")[0][2]
    assert apart(averaging(3, start=12, checkpoint=begun, **flags), ranks[0][1]) <= 1e-12
    assert apart(ranks, serial()[1]) > 1e-3


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


# ── compression: exact where nothing is left out ──────────────────────────────────────────────────────────────────────
TOP_K = {"compress": "top-k", "compress_ratio": 0.05}
POWER = {"compress": "powersgd", "compress_rank": 2}


def compressed(size, iterations=20, **flags):
    return results(size, DROPOUT_NET, iterations, dtype="float64", **flags)


@pytest.mark.parametrize("method", [TOP_K, POWER])
def test_the_residual_is_of_what_was_left_out(method):
    """Biases and statistics go whole."""
    begun = results(3, BATCH_NORM_NET, 10, dtype="float64", lr=0.01, **method)[0][2]
    assert np.abs(begun.optimizer["residual"]["fc.weight"]).max() > 0
    assert not any(begun.optimizer["residual"][name].any() for name in ("fc.bias", "norm1.mean"))


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}, {"optimizer": "lamb", "lr": 0.01}])
def test_all_elements_are_all_reduce(flags):
    ranks = compressed(3, 20, bucket_bytes=2000, compress="top-k", compress_ratio=1.0, **flags)
    assert apart(ranks, serial(20, **flags)[1]) <= 1e-12


def test_factors_of_full_rank_are_all_reduce():
    """fc's gradient is [96, 10], and its columns add up to 0: factors of rank 9 have all of it. conv1 goes whole."""
    assert apart(compressed(3, compress="powersgd", compress_rank=9), serial(20)[1]) <= 1e-10


def test_gradients_go_whole_up_to_then():
    want = serial(9)[1]
    for method in (TOP_K, POWER):
        assert apart(compressed(2, 9, compress_from=9, **method), want) <= 1e-12
        assert apart(compressed(2, 9, compress_from=8, **method), want) > 1e-4


def test_largest_elements_go_on_at_another_number_of_ranks():
    """Where nothing is left out later, all that was left out before has been learnt from."""
    begun = compressed(3, 10, **TOP_K)[0][2]
    want = compressed(1, start=10, checkpoint=begun, iterations=20, **{**TOP_K, "compress_ratio": 1.0})
    for size in (2, 4):
        ranks = compressed(size, start=10, checkpoint=begun, iterations=20, **{**TOP_K, "compress_ratio": 1.0})
        assert apart(ranks, want[0][1]) <= 1e-12
    begun = deepcopy(begun)
    begun.optimizer["residual"] = {name: 0 * x for name, x in begun.optimizer["residual"].items()}
    assert apart(compressed(2, start=10, checkpoint=begun, iterations=20, **TOP_K), want[0][1]) > 1e-4


def test_a_run_of_whole_gradients_goes_on_compressed():
    begun = serial(5)[2]
    ranks = compressed(2, start=5, checkpoint=begun, iterations=10, compress="top-k", compress_ratio=1.0)
    assert apart(ranks, serial(10)[1]) <= 1e-12


# ── a master: rank 0 alone reads, has the loss and updates ────────────────────────────────────────────────────────────
def test_rank_0_alone_reads_and_keeps_a_state():
    """What the others would read is another data set; their batches are empty."""

    def body(t):
        run, _ = run_of(t, DROPOUT_NET, sync="master", iterations=2)
        if t.rank:
            train = replace(run.data.train, images=np.zeros_like(run.data.train.images))
            run = replace(run, data=replace(run.data, train=train))
        with run.batches(t, 0, 2) as batches:
            counts, outcomes = zip(*((len(b.labels), run.worker.iterate(b)) for b in batches), strict=True)
        return counts, [o.loss_sum for o in outcomes], sorted(run.exchange.owned_state.state())

    want = everywhere(1, lambda t: trained(t, DROPOUT_NET, 2, dtype="float64"))[0][0]
    ranks = everywhere(3, body)
    assert [counts for counts, *_ in ranks] == [(30, 30), (0, 0), (0, 0)]
    assert [names for *_, names in ranks] == [["momentum", "step"], ["step"], ["step"]]
    np.testing.assert_allclose(np.array(ranks[2][1]) / 30, want, rtol=1e-4)


def test_bytes_by_rank_are_those_of_the_formula():
    """Two iterations of 30 images of 8 by 8, with 10 outputs each, and n bytes of gradients."""
    size, iterations, batch = 3, 2, 30

    def body(t):
        run, _ = run_of(t, DROPOUT_NET, sync="master", iterations=iterations, dtype="float64")
        iterate(run, t, 0, iterations)
        traffic = run.exchange.reducers.traffic()
        return traffic.bytes_sent, traffic.bytes_received, traffic.exposed_s, 8 * run.arena.count

    ranks = everywhere(size, body)
    n, heads = ranks[0][3], batch // size * 10 * 8
    images = batch // size * (64 + 8 + 3 * 4 + 1)  # with label, crop and the number of the example
    assert ranks[0][:2] == (2 * iterations * (n + images + heads), 2 * iterations * (n + heads))
    assert {rank[:2] for rank in ranks[1:]} == {(iterations * (n + heads), iterations * (n + images + heads))}
    assert all(exposed > 0 for _, _, exposed, _ in ranks)
