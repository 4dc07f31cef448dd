"""Training with a master is training alone: whoever reads, has the loss and updates."""

from dataclasses import replace

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, ITERATIONS, everywhere, run_of
from strategies import NETS, apart, trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport


def master(size, net=DROPOUT_NET, iterations=ITERATIONS, **flags):
    return everywhere(size, lambda t: trained(t, net, iterations, dtype="float64", sync="master", **flags))


def serial(net=DROPOUT_NET, iterations=ITERATIONS, **flags):
    return everywhere(1, lambda t: trained(t, net, iterations, dtype="float64", **flags))[0]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_weights_and_losses_are_those_of_one_rank(net, size):
    """Iteration 10 has 27 examples in place of 30: of four ranks with ghosts of 8, two then have 8, one 3."""
    losses, weights, _ = serial(NETS[net])
    found = master(size, NETS[net], bucket_bytes=2000)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert apart(found, weights) <= 1e-12
    for told, *_ in found:
        np.testing.assert_allclose(told, losses, rtol=1e-11)


@pytest.mark.parametrize(
    "flags",
    [
        {"optimizer": "adamw", "lr": 0.002},
        {"optimizer": "nesterov", "clip_norm": 0.5},
        {"optimizer": "lars", "trust": 0.1, "label_smoothing": 0.1},
        {"accumulate": 3, "clip_norm": 0.1},
        {"accumulate": 2, "net": BATCH_NORM_NET},
    ],
)
def test_optimizers_clipping_and_micro_batches(flags):
    flags = {**flags, "iterations": 15}
    assert apart(master(3, **flags), serial(**flags)[1]) <= 1e-12


@pytest.mark.parametrize("accumulate", [1, 3])
def test_ranks_without_examples(accumulate):
    """Batches of 5 on 4 ranks; iteration 60 is a tail of 2, which two of them have nothing of."""
    net = BATCH_NORM_NET.replace("ghost = 8", "ghost = 1")
    flags = {"batch": 5, "iterations": 63, "start": 53, "lr": 0.01, "net": net}
    assert apart(master(4, accumulate=accumulate, **flags), serial(**flags)[1]) <= 1e-12


@pytest.mark.parametrize("size", [1, 2])
def test_it_goes_on_at_another_number_of_ranks(size):
    flags = {"optimizer": "adamw", "lr": 0.002}
    begun = master(3, iterations=10, **flags)[0][2]
    found = master(size, iterations=20, start=10, found=begun, **flags)
    assert apart(found, serial(iterations=20, **flags)[1]) <= 1e-12


def test_a_run_of_all_reduce_goes_on_under_a_master_and_back():
    begun = everywhere(2, lambda t: trained(t, DROPOUT_NET, 10, dtype="float64"))[0][2]
    middle = master(4, iterations=20, start=10, found=begun)[0][2]
    found = everywhere(3, lambda t: trained(t, DROPOUT_NET, 30, 20, middle, dtype="float64"))
    assert apart(found, serial(iterations=30)[1]) <= 1e-12


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}, {"accumulate": 2}])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, NETS["ghost"], 6, ops=ops, sync="master", settle_at=(3,), **flags)

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]


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

    want = serial(iterations=2)[0]
    found = everywhere(3, body)
    assert [counts for counts, *_ in found] == [(30, 30), (0, 0), (0, 0)]
    assert [names for *_, names in found] == [["momentum", "step"], ["step"], ["step"]]
    np.testing.assert_allclose(np.array(found[2][1]) / 30, want, rtol=1e-4)


def test_rehearsing_runs_forward_and_backward_on_every_rank_and_exchanges_nothing():
    def body(t):
        run, ops = run_of(t, DROPOUT_NET, sync="master", iterations=2, accumulate=2)
        before = ops.to_host(run.arena.weights)
        with run.batches(t, 0, 1) as batches:
            batch = next(batches)
            for turn in range(t.size):  # one after another: whoever waited for another would do so for ever
                if turn == t.rank:
                    run.worker.rehearse(batch)
                t.barrier()
        assert np.array_equal(before, ops.to_host(run.arena.weights)) and ops.square_sum(run.arena.grads) > 0
        return run.exchange.reducers.traffic().bytes_sent == 0

    assert everywhere(2, body) == [True, True]


def test_bytes_by_rank_are_those_of_the_formula():
    """Two iterations of 30 images of 8 by 8, with 10 outputs each, and n bytes of gradients."""
    size, iterations, batch = 3, 2, 30

    def body(t):
        run, _ = run_of(t, DROPOUT_NET, sync="master", iterations=iterations, dtype="float64")
        with run.batches(t, 0, iterations) as batches:
            for b in batches:
                run.worker.iterate(b)
        traffic = run.exchange.reducers.traffic()
        return traffic.bytes_sent, traffic.bytes_received, traffic.exposed_s, 8 * run.arena.count

    found = everywhere(size, body)
    n, heads = found[0][3], batch // size * 10 * 8
    images = batch // size * (64 + 8 + 3 * 4 + 1)  # with label, crop and the number of the example
    assert found[0][:2] == (2 * iterations * (n + images + heads), 2 * iterations * (n + heads))
    assert {rank[:2] for rank in found[1:]} == {(iterations * (n + heads), iterations * (n + images + heads))}
    assert all(exposed > 0 for _, _, exposed, _ in found)
