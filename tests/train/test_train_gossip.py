"""Gossip over whole runs: it learns, a run can be repeated and gone on with, and who looks is told the mean."""

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, ITERATIONS, everywhere, run_of
from strategies import trained

from tests.fakes.device import FakeDeviceOps
from tests.fakes.transports import DeviceTransport


def gossip(size, net=DROPOUT_NET, iterations=ITERATIONS, **flags):
    return everywhere(size, lambda t: trained(t, net, iterations, dtype="float64", sync="gossip", **flags))


@pytest.mark.parametrize("size", [2, 3])
def test_it_learns_and_can_be_repeated(size):
    """Down to a share of the first loss; that of serial training is 0.1."""
    flags = {"lr": 0.02, "augment": False, "iterations": 80, "net": BATCH_NORM_NET}
    found = gossip(size, **flags)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1
    assert np.mean(found[0][0][-10:]) < 0.2 * found[0][0][0]
    flags["iterations"] = 10
    assert gossip(size, **flags)[0][1].tobytes() == gossip(size, gossip_window=0, **flags)[0][1].tobytes()


def test_one_rank_is_serial_and_two_are_not():
    serial = everywhere(1, lambda t: trained(t, DROPOUT_NET, 20, dtype="float64"))[0][1]
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


@pytest.mark.parametrize("flags", [{}, {"optimizer": "adamw", "lr": 0.002, "accumulate": 2}, {"clip_norm": 0.5}])
def test_it_goes_on_exactly_and_at_another_number_of_ranks(flags):
    """As the run that wrote the checkpoint and went on itself."""
    flags = {**flags, "net": BATCH_NORM_NET}
    whole = gossip(3, iterations=20, settle_at=(10,), **flags)
    begun = gossip(3, iterations=10, **flags)[0][2]
    found = gossip(3, start=10, found=begun, iterations=20, **flags)
    assert [w.tobytes() for _, w, _ in found] == [w.tobytes() for _, w, _ in whole]
    other = gossip(2, start=10, found=begun, iterations=20, **flags)[0][0]
    assert other[-1] == pytest.approx(whole[0][0][-1], rel=0.3)


def test_a_run_of_all_reduce_goes_on_and_back():
    begun = everywhere(2, lambda t: trained(t, DROPOUT_NET, 10, dtype="float64"))[0][2]
    middle = gossip(4, iterations=20, start=10, found=begun)[0][2]
    losses, *_ = everywhere(3, lambda t: trained(t, DROPOUT_NET, 30, 20, middle, dtype="float64"))[0]
    assert len(losses) == 10 and losses[-1] < 2.0


def test_a_rank_without_examples():
    """Batches of 5 on 4 ranks; iteration 60 is a tail of 2, which two of them have nothing of."""
    flags = {"batch": 5, "iterations": 63, "lr": 0.01, "net": BATCH_NORM_NET.replace("ghost = 8", "ghost = 1")}
    found = gossip(4, start=57, **flags)
    assert len({weights.tobytes() for _, weights, _ in found}) == 1 and np.isfinite(found[0][1]).all()


@pytest.mark.parametrize("flags", [{}, {"clip_norm": 0.5}])
def test_on_a_device_that_computes_later(flags):
    def body(t, device):
        ops = FakeDeviceOps() if device else None
        transport = DeviceTransport(t, ops) if device else t
        return trained(transport, BATCH_NORM_NET, 7, ops=ops, sync="gossip", settle_at=(3,), **flags)

    host, device = (everywhere(3, lambda t, d=d: body(t, d)) for d in (False, True))
    assert [weights.tobytes() for _, weights, _ in host] == [weights.tobytes() for _, weights, _ in device]
